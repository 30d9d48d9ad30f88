"""A gallery in a collection of Milvus.

::

    collection    access to a server, and the collection's schema
    writer        items → a collection
    entities      entities of Milvus ↔ items
    rows          row numbers of items
    gallery       searching it
    filter        filters → expressions of Milvus
    live          its changes
    cache         entities that were read lately
"""
