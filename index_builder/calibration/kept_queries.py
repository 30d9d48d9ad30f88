"""Stores calibration queries as arrays in the bundle, to recalibrate without images.

A stored query consists of an embedding, in half precision, and a label. Item features are in
`model_store.bundles.item_features`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.datasets.splits import QuerySet
from index_builder.vectors.encoder import embed_with_features
from model_store.bundles.item_features import MOST_ITEMS, ItemFeatures, packed_names, unpacked_names
from model_store.decision.outliers import averaged_features, averaging
from model_store.encoder.contract import Embeddings, Encoder, EncoderMetadata, Inputs
from model_store.encoder.vector_input import VectorInput
from model_store.errors import ItemNotFound
from model_store.feedback import Decided, DrawnQuery
from model_store.gallery import Gallery
from model_store.processors import PROVIDERS
from model_store.table import HalfRows, Table
from model_store.truth import label_or_id

from .item_queries import ItemQueries, group_keys, whole_groups

KEPT_QUERIES_FILE = "calibration_queries.npz"

MOST_QUERIES = 2_000
"""Maximum number of stored queries of each kind, chosen at random. More queries add little."""

_KINDS = ("matched", "withheld")
_PARTS = ("mean", "variance", "features")


@dataclass(frozen=True, slots=True)
class Kept(Table):
    """B queries of one kind.

    Attributes
    ----------
    labels, groups, sources : (B,), see `LabelledImages`.
    mean, variance, features : embeddings (B, D), (B, D) and (B, F). If there are many features,
        adjacent features are averaged.
    """

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[str, ...]
    sources: tuple[str, ...] | None
    mean: HalfRows
    variance: HalfRows
    features: HalfRows

    @classmethod
    def of(cls, images: LabelledImages, embeddings: Embeddings) -> Kept:
        """Return images and their embeddings as stored queries."""
        return cls(
            images.ids,
            images.labels,
            tuple(group_keys(images)),
            images.sources,
            HalfRows.of(embeddings.mean),
            HalfRows.of(embeddings.variance),
            _half_features(embeddings.features),
        )

    def embeddings(self) -> Embeddings:
        """Return the embeddings of the stored queries."""
        return Embeddings(self.mean.whole(), self.variance.whole(), self.features.whole())

    def images(self) -> LabelledImages:
        """Return the queries as a collection whose images are inputs of `KeptVectors`."""
        return as_vectors(self.ids, self.labels, self.groups, self.sources, self.embeddings())


@dataclass(frozen=True, slots=True)
class CalibrationInputs:
    """All inputs of a calibration, except the gallery.

    Attributes
    ----------
    matched, withheld : queries with a match, and queries without a match.
    are_views, unseen : see `calibrate_gallery`.
    seed : seed of the calibration.
    labels : labels that the gallery had when the queries were chosen; empty in bundles of earlier
        releases.
    unlabelled : (B, D), see `ItemQueries.unlabelled`: embedding means of the matched queries. None
        if the matched queries are not items.
    """

    matched: Kept
    withheld: Kept
    are_views: bool
    unseen: bool
    seed: int
    labels: tuple[str, ...] = ()
    unlabelled: HalfRows | None = None

    def relabelled(self, gallery: Gallery, renamed: Mapping[str, str]) -> CalibrationInputs:
        """Return the queries with the current labels of the gallery.

        A query that is an item gets the current label of the item. If the gallery has no labels,
        the label of a view is the id of the item. If the gallery has labels, views of unlabelled
        items are left out. A view of an unlabelled item is not an absent query, because the gallery
        contains the item. The view has no match either, because the item has no label.

        Parameters
        ----------
        renamed : labels that were renamed since the queries were chosen, old → new.
        """

        def now(part: Kept) -> Kept:
            labels = [renamed.get(label, label) for label in part.labels]
            if self.unlabelled is not None and part is self.matched:
                for place, item_id in enumerate(part.ids):
                    labels[place] = _label_of(gallery, item_id) or labels[place]
            if self.are_views and gallery.labels:
                of_items = [_label_of(gallery, item_id) for item_id in part.labels]
                rows = np.array([n for n, label in enumerate(of_items) if label], dtype=np.int64)
                return replace(part.at(rows), labels=tuple(filter(None, of_items)))
            return replace(part, labels=tuple(labels))

        known = dict.fromkeys(renamed.get(label, label) for label in self.labels)
        return replace(
            self, matched=now(self.matched), withheld=now(self.withheld), labels=tuple(known)
        )

    def save(self, directory: Path) -> None:
        """Write to ``directory``."""
        arrays: dict[str, NDArray[Any]] = {
            "settings": np.array([self.are_views, self.unseen, self.seed], np.int64),
            "labels": packed_names([self.labels]),
        }
        rows = {} if self.unlabelled is None else {"unlabelled": self.unlabelled}
        for kind in _KINDS:
            queries: Kept = getattr(self, kind)
            names = [queries.ids, queries.labels, queries.groups, queries.sources]
            arrays[f"{kind}.names"] = packed_names(names)
            rows |= {f"{kind}.{part}": getattr(queries, part) for part in _PARTS}
        for name, some in rows.items():
            arrays |= {name: some.values, f"{name}.scales": some.scales}
        np.savez(directory / KEPT_QUERIES_FILE, **arrays)  # type: ignore[arg-type] # numpy's stub

    @classmethod
    def load(cls, directory: Path) -> CalibrationInputs | None:
        """Read the file that `save` wrote; return None if the file does not exist."""
        path = directory / KEPT_QUERIES_FILE
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as arrays:

            def half_rows(name: str) -> HalfRows:
                return HalfRows(arrays[name], arrays[f"{name}.scales"])

            are_views, unseen, seed = arrays["settings"].tolist()
            kinds = {}
            for kind in _KINDS:
                ids, labels, groups, *sources = unpacked_names(arrays[f"{kind}.names"])
                parts = [half_rows(f"{kind}.{part}") for part in _PARTS]
                known = None if sources[0] is None else tuple(sources[0])
                kinds[kind] = Kept(tuple(ids), tuple(labels), tuple(groups), known, *parts)
            return cls(
                **kinds,
                are_views=bool(are_views),
                unseen=bool(unseen),
                seed=seed,
                labels=tuple(unpacked_names(arrays["labels"])[0]) if "labels" in arrays else (),
                unlabelled=half_rows("unlabelled") if "unlabelled" in arrays else None,
            )


def _label_of(gallery: Gallery, item_id: str) -> str | None:
    """Return the label of an item; None if the item has no label or does not exist."""
    try:
        return gallery.item(item_id).label
    except ItemNotFound:
        return None


def keep(
    directory: Path,
    encoder: Encoder,
    images: LabelledImages,
    queries: QuerySet,
    gallery: Gallery,
    seed: int,
    *,
    are_views: bool,
    unseen: bool,
    items: ItemQueries | None = None,
) -> None:
    """Write the inputs of a calibration into the ``directory`` of its bundle.

    Parameters
    ----------
    encoder : encoder of the images; a `StoredEncoder` returns cached embeddings.
    images : gallery images in random order; empty if not available.
    seed, are_views, unseen, items : see `calibrate_gallery`.
    """

    def kept(some: LabelledImages) -> Kept:
        if len(some) > MOST_QUERIES:
            chosen = np.random.default_rng(seed).permutation(len(some))[:MOST_QUERIES]
            some = some.at(np.sort(chosen))  # makes refits reproducible
        return Kept.of(some, _embedded(encoder, some))

    of_matched, unlabelled = (
        (kept(queries.matched), None)
        if items is None
        else (Kept.of(items.images, items.alone), HalfRows.of(items.unlabelled.mean))
    )
    CalibrationInputs(
        of_matched,
        kept(queries.withheld),
        are_views,
        unseen,
        seed,
        tuple(gallery.labels),
        unlabelled,
    ).save(directory)
    if len(images):
        images = images.at(whole_groups(images.groups, np.arange(len(images)), MOST_ITEMS))
        ItemFeatures(
            images.ids,
            tuple(group_keys(images)),
            _half_features(_embedded(encoder, images).features),
            np.zeros(len(images), dtype=bool),
            len(images) / gallery.n_items,
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
        item = gallery.items(np.array([gallery.row(said.item_id)]))[0]
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
