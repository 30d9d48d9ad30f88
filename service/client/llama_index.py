"""A retriever of LlamaIndex that returns results only for the verdict ``match``."""

from __future__ import annotations

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
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The retriever of LlamaIndex needs llama-index-core. {how_to_install('llama-index')}"
    ) from error


class VouchRetriever(BaseRetriever):
    """Returns the items that match an image, as nodes.

    Returns no nodes if the verdict is not ``match``.

    The query is a ``QueryBundle`` with an ``image_path``, or a text that is the path of an image
    file or a ``data:`` URI. A node's score is its match probability. A node has the metadata of its
    item, and Vouch's numbers under the key ``vouch``.

    Parameters
    ----------
    client : client of the service; the caller closes it.
    limit : maximum number of nodes.
    min_match_probability : minimum match probability of nodes after the first.
    text_key : metadata key of a node's text. If None, the text is the label of the item, or the id
        of an item without a label.

    Raises
    ------
    ValueError : ``limit`` or ``min_match_probability`` is out of range.
    """

    def __init__(
        self,
        client: VouchClient,
        gallery: str,
        limit: int = 10,
        min_match_probability: float = MIN_MATCH_PROBABILITY,
        text_key: str | None = None,
    ) -> None:
        if not (1 <= limit <= 100 and 0 <= min_match_probability <= 1):
            raise ValueError(
                f"received limit {limit} and min_match_probability {min_match_probability}, wanted "
                "1 to 100 and 0 to 1"
            )
        super().__init__()
        self._client, self._gallery, self._limit = client, gallery, limit
        self._min_match_probability, self._text_key = min_match_probability, text_key

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        image = image_named(query_bundle.image_path or query_bundle.query_str)
        found = vouched_results(
            self._client, self._gallery, image, self._limit, self._min_match_probability
        )
        return [
            NodeWithScore(
                node=TextNode(
                    id_=one.id,
                    text=text_of(one, self._text_key),
                    metadata=metadata_of(self._gallery, one),
                ),
                score=one.match_probability,
            )
            for one in found
        ]
