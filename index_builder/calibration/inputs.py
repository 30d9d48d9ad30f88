"""The inputs of a calibration: a gallery, and the queries that it is searched with."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from index_builder.calibration.item_queries import ENOUGH, ItemQueries
from index_builder.calibration.retrieval import BY_LABEL, TruthRule
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet
from model_store.encoder.contract import Encoder
from model_store.gallery import Gallery


@dataclass(frozen=True, slots=True)
class GalleryQueries:
    """A gallery, and the queries to calibrate it with.

    Attributes
    ----------
    encoder : encoder of the images; a `StoredEncoder` returns cached embeddings.
    images : gallery images in random order, at most `N_DETECTOR_IMAGES`; empty if not available.
    seed : seed of all random choices.
    are_views : whether the queries are augmented views of gallery images, because there are no
        labels. Each image is then its own label.
    unseen : whether the encoder was not trained on the gallery's images.
    items : items that replace the matched queries of ``queries``.
    rule : the rule for a match, and the parents of labels.
    enough : sufficient number of matched queries. If there are fewer matched queries and the
        gallery is ``unseen``, gallery images become queries, too; each is hidden from its own
        results. If labels have parents, ``enough`` is at least `ENOUGH_WITH_PARENTS`.
    """

    encoder: Encoder
    gallery: Gallery
    images: LabelledImages
    queries: QuerySet
    seed: int
    _: KW_ONLY
    are_views: bool
    unseen: bool
    items: ItemQueries | None = None
    rule: TruthRule = BY_LABEL
    enough: int = ENOUGH

    @property
    def matched(self) -> LabelledImages:
        """The queries with a match."""
        return self.queries.matched if self.items is None else self.items.images
