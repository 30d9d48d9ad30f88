"""FAISS indexes.

::

    plan      which index for which size and memory
    build     directions → index
    search    search, with and without allowed rows
    recall    how much of exact search it finds
"""
