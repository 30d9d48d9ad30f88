"""The settings of a build.

::

    build        the TOML file of a build
    posterior    its table [posterior]
    milvus       the address and token of Milvus, from the environment
"""
