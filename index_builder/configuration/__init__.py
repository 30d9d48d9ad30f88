"""What users may set.

::

    build        the TOML file of a build
    posterior    its table [posterior]
    milvus       how to reach Milvus, from the environment
"""
