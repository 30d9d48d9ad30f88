"""FAISS indexes.

::

    plan        choice of an index for a size and memory budget
    build       directions → index
    allowed     the rows that a search may find
    search      search, with and without allowed rows
"""
