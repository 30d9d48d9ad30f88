"""Adapters for vector databases: the database finds the neighbours, and Vouch decides.

::

    store     the interface, and a function that searches and decides

Each adapter takes a client object of the store's library and does not import the library.
"""

from model_store.stores.store import (
    FaissStore,
    LanceStore,
    PgvectorStore,
    QdrantStore,
    Store,
    StoreAnswer,
    search_and_decide,
)

__all__ = [
    "FaissStore",
    "LanceStore",
    "PgvectorStore",
    "QdrantStore",
    "Store",
    "StoreAnswer",
    "search_and_decide",
]
