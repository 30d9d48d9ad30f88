"""The embedded gallery: FAISS and SQLite in a directory.

::

    gallery      searching it
    writer       items and embeddings → files
    items        ids, labels, metadata and thumbnails in SQLite
    variances    variances, memory-mapped
    row_file     arrays of rows, written in parts
"""
