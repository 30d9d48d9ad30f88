"""A retriever of LangChain that returns results only for the verdict ``match``."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from model_store.installation import how_to_install
from service.client.client import VouchClient
from service.client.vouched import (
    MIN_MATCH_PROBABILITY,
    image_named,
    metadata_of,
    text_of,
    vouched_results,
)

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The retriever of LangChain needs langchain-core. {how_to_install('langchain')}"
    ) from error


class VouchRetriever(BaseRetriever):
    """Returns the items that match an image, as documents.

    Returns no documents if the verdict is not ``match``.

    The query of `invoke` is the path of an image file, or a ``data:`` URI. A document has the
    metadata of its item, and Vouch's numbers under the key ``vouch``.

    Attributes
    ----------
    client : client of the service; the caller closes it.
    limit : maximum number of documents.
    min_match_probability : minimum match probability of documents after the first.
    text_key : metadata key of a document's text. If None, the text is the label of the item, or the
        id of an item without a label.
    """

    model_config = ConfigDict(extra="forbid")

    client: VouchClient
    gallery: str
    limit: int = Field(10, ge=1, le=100)
    min_match_probability: float = Field(MIN_MATCH_PROBABILITY, ge=0, le=1)
    text_key: str | None = None

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - LangChain's signature
    ) -> list[Document]:
        image = image_named(str(query))  # callers may pass a path that is not text
        found = vouched_results(
            self.client, self.gallery, image, self.limit, self.min_match_probability
        )
        return [
            Document(
                id=one.id,
                page_content=text_of(one, self.text_key),
                metadata=metadata_of(self.gallery, one),
            )
            for one in found
        ]
