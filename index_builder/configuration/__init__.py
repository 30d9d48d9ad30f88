"""The settings of a build.

::

    build        the TOML file of a build
    encoder      the tables of the encoder: network, training, posterior
    defaults     defaults that follow from other keys
    file         the file as text: complete, or commented as a start
    schema       its JSON schema
    problems     error messages for a file
    photographs  configuration of a folder or of vectors, without a file
    objective    its table [training.objective]
    posterior    its table [posterior]
    requirements limits of a build's outcome, for --require
    section      the base of all tables
    signing      the key that bundles are signed with, from the environment
    milvus       the address and token of Milvus, from the environment
"""
