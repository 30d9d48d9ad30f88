"""The embedded gallery: FAISS and SQLite in a directory.

::

    gallery      search of the gallery
    items        ids, labels, metadata and thumbnails in SQLite
    fields       memory-mapped indexes of the fields in filters
    row_file     arrays of rows, written in parts
"""
