"""The settings of a build.

::

    build        the TOML file of a build
    encoder      its tables that decide what the encoder becomes
    defaults     defaults that follow from other keys
    file         the file as text: in full, and to begin with
    schema       its JSON schema
    problems     errors of a file, in its own words
    photographs  a build of a folder or of vectors, without a file
    objective    its table [training.objective]
    posterior    its table [posterior]
    requirements what a build's outcome must reach, as --require has it
    section      the base of all tables
    signing      the key that bundles are signed with, from the environment
    milvus       the address and token of Milvus, from the environment
"""
