"""The settings of a build.

::

    build        the TOML file of a build
    encoder      its tables that decide what the encoder becomes
    photographs  a build of a folder, without a file
    objective    its table [training.objective]
    posterior    its table [posterior]
    section      the base of all tables
    signing      the key that bundles are signed with, from the environment
    milvus       the address and token of Milvus, from the environment
"""
