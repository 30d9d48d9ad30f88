"""A retriever of LlamaIndex that returns only results with the verdict ``match``."""

from service.client.llama_index import VouchRetriever

__all__ = ["VouchRetriever"]
