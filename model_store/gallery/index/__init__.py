"""FAISS indexes.

::

    plan        choice of an index for a size and memory budget
    build       directions → index
    search      search, with and without allowed rows
"""
