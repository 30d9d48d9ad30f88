"""A gallery in a collection of Milvus.

::

    collection    access to a server, and the collection's schema
    entities      conversion between items and Milvus entities, and of filters to expressions
    writer        writes items into a collection
    gallery       search of the collection
    live          changes of the gallery: accepts writes
    log           the changes, and the current rows
    databases     storage of the log: SQLite or PostgreSQL
"""
