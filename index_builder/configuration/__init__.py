"""The settings of a build.

::

    build        the TOML file of a build
    encoder      the tables of the encoder: network, training, posterior
    defaults     defaults that depend on other keys
    file         the file as text: with all values, or with comments for users to edit
    schema       the base of all tables; the JSON schema of the file
    problems     error messages for a file
    objective    the table [training.objective]
    posterior    the table [posterior]
    environment  signing keys, and access to a database
"""
