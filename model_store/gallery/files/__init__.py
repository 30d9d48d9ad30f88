"""The embedded gallery: FAISS and SQLite in a directory.

::

    gallery      searching it
    writer       items and embeddings → files
    items        ids, labels, metadata and thumbnails in SQLite
    previews     larger pictures of them, where they are wanted, in SQLite
    fields       indexes of the fields that filters ask for, memory-mapped
    variances    variances, memory-mapped
    row_file     arrays of rows, written in parts
"""
