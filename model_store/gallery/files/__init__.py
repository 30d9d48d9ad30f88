"""The embedded gallery: FAISS and SQLite in a directory.

::

    gallery      search of the gallery, and the variances of its items
    items        ids, labels, metadata and thumbnails in SQLite
    fields       memory-mapped indexes of the fields in filters
"""
