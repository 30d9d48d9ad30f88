"""The settings of a build.

::

    build        the TOML file of a build
    encoder      the tables of the encoder: network, training, posterior
    defaults     defaults that depend on other keys
    file         the file as text: with all values, or with comments for users to edit
    schema       the JSON schema of the file
    problems     error messages for a file
    objective    the table [training.objective]
    posterior    the table [posterior]
    requirements requirements on a build's outcome, for --require
    section      the base of all tables
    signing      the key to sign bundles with, from the environment
    database     the address and token of the database of galleries, from the environment
"""
