"""FAISS indexes.

::

    plan        choice of an index for a size and memory budget
    build       directions → index
    row_blocks  directions read from a file in blocks
    allowed     the rows that a search may find
    search      search, with and without allowed rows
    recall      recall against exact search
"""
