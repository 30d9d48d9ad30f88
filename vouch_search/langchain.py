"""A retriever of LangChain that returns only results with the verdict ``match``."""

from service.client.langchain import VouchRetriever

__all__ = ["VouchRetriever"]
