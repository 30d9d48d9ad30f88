"""A gallery in a collection of Milvus.

::

    collection    access to a server, and the collection's schema
    availability  a circuit breaker for a server that is down
    writer        items → a collection
    entities      entities of Milvus ↔ items
    rows          row numbers of items
    gallery       searching it
    filter        filters → expressions of Milvus
    matching      the rows that such an expression is true of
    live          its changes
    log           what has changed, and what of it is current
    content       the content of a change, as text in the log
    databases     where the log lies: SQLite or PostgreSQL
    cache         recently read entities
"""
