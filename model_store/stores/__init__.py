"""Adapters for vector databases: the database finds the neighbours, and Vouch decides.

::

    store      the interface, and a function that searches and decides
    qdrant     a collection of Qdrant
    pgvector   a table of PostgreSQL with pgvector
    lancedb    a table of LanceDB
    faiss      an index of FAISS

Each adapter takes a client object of the store's library and does not import the library.
"""

from model_store.stores.faiss import FaissStore
from model_store.stores.lancedb import LanceStore
from model_store.stores.pgvector import PgvectorStore
from model_store.stores.qdrant import QdrantStore
from model_store.stores.store import Store, StoreAnswer, search_and_decide

__all__ = [
    "FaissStore",
    "LanceStore",
    "PgvectorStore",
    "QdrantStore",
    "Store",
    "StoreAnswer",
    "search_and_decide",
]
