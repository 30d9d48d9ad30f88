"""Vector queries, and decisions on the neighbours that another vector store found."""

from model_store import NeighbourList, Retriever, VectorQuery, decide_list, open_bundle
from model_store.decision import Terms
from model_store.images import decode_image
from model_store.stores import (
    FaissStore,
    LanceStore,
    PgvectorStore,
    QdrantStore,
    search_and_decide,
)

__all__ = [
    "FaissStore",
    "LanceStore",
    "NeighbourList",
    "PgvectorStore",
    "QdrantStore",
    "Retriever",
    "Terms",
    "VectorQuery",
    "decide_list",
    "decode_image",
    "open_bundle",
    "search_and_decide",
]
