"""FAISS indexes.

::

    plan        which index for which size and memory
    build       directions → index
    many_lists  the lists of very large indexes, in two levels
    row_blocks  directions of a file, some at a time
    allowed     the rows that a search may find
    search      search, with and without allowed rows
    recall      how much of exact search it finds
"""
