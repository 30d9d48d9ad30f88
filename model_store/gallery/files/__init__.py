"""The embedded gallery: FAISS and SQLite in a directory.

::

    gallery      search of the gallery
    writer       items and embeddings → files
    items        ids, labels, metadata and thumbnails in SQLite
    previews     optional larger pictures of the items, in SQLite
    fields       memory-mapped indexes of the fields in filters
    variances    memory-mapped variances
    row_file     arrays of rows, written in parts
"""
