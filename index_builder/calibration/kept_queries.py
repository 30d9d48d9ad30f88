"""Stores calibration queries as arrays in the bundle, to recalibrate without images.

The arrays are described in `model_store.bundles.kept_queries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.vectors.encoder import embed_with_features
from model_store.bundles.kept_queries import MOST_ITEMS, CalibrationInputs, ItemFeatures, Kept
from model_store.decision.outliers import averaged_features, averaging
from model_store.encoder.contract import Embeddings, Encoder, EncoderMetadata, Inputs, VectorInput
from model_store.errors import ItemNotFound
from model_store.feedback import Decided, DrawnQuery
from model_store.gallery import Gallery
from model_store.machine import PROVIDERS
from model_store.table import HalfRows
from model_store.truth import label_or_id

from .inputs import GalleryQueries
from .item_queries import group_keys, whole_groups

MOST_QUERIES = 2_000
"""Maximum number of stored queries of each kind, chosen at random. More queries add little."""


def kept_of(images: LabelledImages, embeddings: Embeddings) -> Kept:
    """Return B images with their ``embeddings`` as stored queries."""
    return Kept(
        images.ids,
        images.labels,
        tuple(group_keys(images)),
        images.sources,
        HalfRows.of(embeddings.mean),
        HalfRows.of(embeddings.variance),
        _half_features(embeddings.features),
    )


def images_of(kept: Kept) -> LabelledImages:
    """Return stored queries as a collection whose images are inputs of `KeptVectors`."""
    return as_vectors(kept.ids, kept.labels, kept.groups, kept.sources, kept.embeddings())


def keep(directory: Path, inputs: GalleryQueries) -> None:
    """Write the inputs of a calibration into the ``directory`` of its bundle."""
    encoder, queries, items = inputs.encoder, inputs.queries, inputs.items

    def kept(some: LabelledImages) -> Kept:
        if len(some) > MOST_QUERIES:
            chosen = np.random.default_rng(inputs.seed).permutation(len(some))[:MOST_QUERIES]
            some = some.at(np.sort(chosen))  # makes refits reproducible
        return kept_of(some, _embedded(encoder, some))

    of_matched, unlabelled = (
        (kept(queries.matched), None)
        if items is None
        else (kept_of(items.images, items.alone), HalfRows.of(items.unlabelled.mean))
    )
    CalibrationInputs(
        of_matched,
        kept(queries.withheld),
        inputs.are_views,
        inputs.unseen,
        inputs.seed,
        tuple(inputs.gallery.labels),
        unlabelled,
        () if items is None or items.layers is None else items.layers.not_fitted,
    ).save(directory)
    images = inputs.images
    if len(images):
        images = images.at(whole_groups(images.groups, np.arange(len(images)), MOST_ITEMS))
        ItemFeatures(
            images.ids,
            tuple(group_keys(images)),
            _half_features(_embedded(encoder, images).features),
            np.zeros(len(images), dtype=bool),
            len(images) / inputs.gallery.n_items,
        ).save(directory)


def _half_features(features: NDArray[np.float32]) -> HalfRows:
    """Return features in half precision; if there are many, adjacent features are averaged."""
    return HalfRows.of(averaged_features(features, averaging(features.shape[1])))


def _embedded(encoder: Encoder, images: LabelledImages) -> Embeddings:
    if len(images):
        return embed_with_features(encoder, images, "kept for later")
    nothing = np.empty((0, encoder.dim), dtype=np.float32)
    return Embeddings(nothing, nothing, np.empty((0, encoder.n_features), dtype=np.float32))


class KeptVectors:
    """An encoder whose inputs are embeddings; see `as_vectors`.

    Parameters
    ----------
    fingerprint : fingerprint of the encoder that made the embeddings.
    dim, n_features : D and F, the sizes of an embedding and of its features.
    made_by : metadata of that encoder, if the variances of pairs are computed.
    """

    def __init__(
        self, fingerprint: str, dim: int, n_features: int, made_by: EncoderMetadata | None = None
    ) -> None:
        self.fingerprint = fingerprint
        self.provider, self.placement = PROVIDERS["cpu"], None
        self.dim, self.n_features = dim, n_features
        vectors = VectorInput("kept", dim, with_variance=True, n_features=n_features)
        self.metadata = (
            EncoderMetadata(vectors, "kept") if made_by is None else replace(made_by, input=vectors)
        )

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:  # noqa: ARG002
        """Split rows (B, 2 D + F) into mean, variance and features."""
        parts = np.split(images, [self.dim, 2 * self.dim], axis=1)
        return Embeddings(*map(np.ascontiguousarray, parts))

    def close(self) -> None:
        """Do nothing; there is no resource to release."""


def as_vectors(
    ids: tuple[str, ...],
    labels: tuple[str, ...],
    groups: tuple[str, ...],
    sources: tuple[str, ...] | None,
    embeddings: Embeddings,
) -> LabelledImages:
    """Return a collection whose images are vectors (2 D + F,), the inputs of `KeptVectors`."""
    rows = np.hstack([embeddings.mean, embeddings.variance, embeddings.features])

    def read(row: int, _smallest_side: int | None) -> Pixels:
        vector: Pixels = rows[row]
        return vector

    return LabelledImages(ids, labels, read, np.arange(len(ids)), groups, sources)


UNSAID = "\0 not said"
"""Label of a query whose true match is unknown. The query counts as a matched query with only wrong
results, so it never makes an error bound easier to meet."""

SOURCE = "decisions"
"""Name of the source of reviewed queries. It is not used if the bundle's queries have no
sources."""


def with_decisions(
    kept: CalibrationInputs, drawn: Sequence[DrawnQuery], gallery: Gallery
) -> CalibrationInputs:
    """Return the bundle's stored queries, followed by the reviewed queries.

    Parameters
    ----------
    drawn : see `drawn_queries`.
    gallery : the gallery with the items named in decisions.
    """
    truths = [_truth(one.said, gallery) for one in drawn]
    matched = [row for row, truth in enumerate(truths) if truth is not None]
    absent = [row for row, truth in enumerate(truths) if truth is None]
    unlabelled = kept.unlabelled
    if unlabelled is not None and matched:
        # No layer was fitted to a reviewed query, so the query's mean does not depend on its label.
        unlabelled = HalfRows.concatenate(
            [unlabelled, _rows([drawn[row] for row in matched], "mean")]
        )
    return replace(
        kept,
        unlabelled=unlabelled,
        matched=_joined(kept.matched, [drawn[row] for row in matched], [*filter(None, truths)]),
        withheld=_joined(kept.withheld, [drawn[row] for row in absent], [""] * len(absent)),
    )


def _truth(said: Decided | None, gallery: Gallery) -> str | None:
    """Return the true label of a query; None if the gallery has no match for the query.

    In a gallery without labels, return the id of the match.
    """
    if said is None or said.decision == "not_this_item":
        return UNSAID
    if said.decision in {"none_of_these", "new"} or said.item_id is None:
        return None
    if not gallery.labels:
        return said.item_id
    try:
        item = gallery.item(said.item_id)
    except ItemNotFound:  # the item was removed, but its label may remain
        return said.label or said.item_id
    return label_or_id(item)


def _joined(kept: Kept, drawn: Sequence[DrawnQuery], labels: Sequence[str]) -> Kept:
    """Append the reviewed queries; each query is its own group."""
    if not drawn:
        return kept
    ids = tuple(one.embedded.query_id for one in drawn)
    names = [name or f"absent {one}" for name, one in zip(labels, ids, strict=True)]
    return Kept(
        kept.ids + ids,
        kept.labels + tuple(names),
        kept.groups + tuple(f"query {one}" for one in ids),
        None if kept.sources is None else kept.sources + (SOURCE,) * len(ids),
        HalfRows.concatenate([kept.mean, _rows(drawn, "mean")]),
        HalfRows.concatenate([kept.variance, _rows(drawn, "variance")]),
        HalfRows.concatenate([kept.features, _half_features(_rows(drawn, "features").whole())]),
    )


def _rows(drawn: Sequence[DrawnQuery], part: str) -> HalfRows:
    return HalfRows.from_bytes([getattr(one.embedded, part) for one in drawn])
