"""The engine for galleries in PostgreSQL with pgvector, which several machines can share.

::

    database    the address, the tables, connections and errors
    filter      converts filters to SQL
    gallery     a state of the gallery: search, items, facets
    live        changes; each change is one transaction
    writer      writes a gallery
"""
