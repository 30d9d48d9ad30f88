"""What queries look like to an encoder and a gallery: the raw material of calibration."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.embedding import BATCH
from index_builder.progress import track
from model_store.decision import OUTLIER_SIGNALS, LabelMeans, OutlierDetector, labels_found, signals
from model_store.decision.label_means import label_sums
from model_store.decision.outliers import unit_rows
from model_store.encoder import Embeddings, Encoder
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Observed:
    """What B queries looked like to encoder and gallery.

    Attributes
    ----------
    spherical_variances : (B,).
    outlier_signals : (B, S), see `OutlierDetector.signals`.
    similarities : (B, n) of their candidates.
    label_codes : (B, n) of their candidates.
    mean_similarities : (B, n) of the means of their labels, see `LabelMeans.similarities`.
    matches : (B, n) whether each candidate is a true match.
    """

    spherical_variances: Floats
    outlier_signals: Floats
    similarities: Floats
    label_codes: NDArray[np.int32]
    mean_similarities: Floats
    matches: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.matches)

    def at(self, rows: NDArray[np.int64]) -> Observed:
        """Some of the queries."""
        return Observed(*(getattr(self, field.name)[rows] for field in fields(self)))

    def signals(self, row: int, outlier_score: float) -> tuple[NDArray[np.int64], Floats]:
        """Places (g,) of the labels that one query finds, and their signals (g, S)."""
        places, belong = labels_found(self.label_codes[row])
        return places, signals(
            self.similarities[row],
            places,
            belong,
            self.mean_similarities[row, places],
            float(self.spherical_variances[row]),
            outlier_score,
        )

    def first_signals(self, outlier_scores: Floats) -> Floats:
        """Signals (B, S) of the first items; ``outlier_scores`` (B,)."""
        first = [self.signals(row, score)[1][0] for row, score in enumerate(outlier_scores)]
        return np.stack(first)


def observe(
    encoder: Encoder,
    gallery: Gallery,
    detector: OutlierDetector,
    means: LabelMeans,
    queries: LabelledImages,
    *,
    hide_label: bool = False,
) -> Observed:
    """Embed ``queries`` and look up their candidates.

    In a gallery without labels a query's label is the id of the item that it shows.

    Parameters
    ----------
    hide_label : hide every item of a query's own label from it, which makes of a query with a
        match one without; for galleries whose owner can withhold no label.
    """
    variances = np.empty(len(queries))
    alien = np.empty((len(queries), len(OUTLIER_SIGNALS)))
    directions = np.empty((len(queries), encoder.dim), dtype=np.float32)
    batches = queries.batches(encoder.metadata.preprocessing, BATCH)
    n_batches = -(-len(queries) // BATCH)
    for positions, images in track(batches, "calibration queries", n_batches):
        embeddings = encoder.encode(images)
        variances[positions] = embeddings.spherical_variances
        alien[positions] = detector.signals(embeddings)
        directions[positions] = embeddings.directions
    return _looked_up(gallery, queries, directions, means, variances, alien, hide_label=hide_label)


def observe_left_out(
    gallery: Gallery,
    means: LabelMeans,
    items: LabelledImages,
    embeddings: Embeddings,
    outlier_signals: Floats,
    *,
    hide_label: bool = False,
) -> Observed:
    """Look up the candidates of items of the gallery, each hidden from its own list.

    Parameters
    ----------
    items, embeddings : n of the gallery's images.
    outlier_signals : (n, S) by detectors that were not fitted on them.
    hide_label : as in `observe`.
    """
    rows = np.arange(gallery.n_items)
    row_of = {item.id: row for row, item in zip(rows, gallery.items(rows), strict=True)}
    return _looked_up(
        gallery,
        items,
        embeddings.directions,
        means,
        embeddings.spherical_variances,
        outlier_signals,
        hide_label=hide_label,
        own=np.array([row_of[name] for name in items.ids]),
    )


def _looked_up(
    gallery: Gallery,
    queries: LabelledImages,
    directions: NDArray[np.float32],
    means: LabelMeans,
    variances: Floats,
    outlier_signals: Floats,
    *,
    hide_label: bool,
    own: NDArray[np.int64] | None = None,
) -> Observed:
    """Find the candidates of B queries; ``own`` (B,) are items hidden from the queries they are."""
    item_codes, codes = _codes(gallery, queries)
    n = min(N_CANDIDATES, gallery.n_items - (own is not None))
    if hide_label:
        n = min(n, gallery.n_items - int(np.bincount(item_codes[item_codes >= 0]).max()))
    similarities = np.empty((len(queries), n))
    rows = np.empty((len(queries), n), dtype=np.int64)
    if hide_label:  # which hides an item from itself as well
        for code in np.unique(codes):
            chosen = np.flatnonzero(codes == code)
            found = gallery.candidates(directions[chosen], n, item_codes != code)
            similarities[chosen], rows[chosen] = found.similarities, found.rows
    else:
        for start in range(0, len(queries), BATCH):
            chosen = np.arange(start, min(start + BATCH, len(queries)))
            found = gallery.candidates(directions[chosen], n + (own is not None))
            kept = np.ones(found.rows.shape, dtype=bool)
            if own is not None:
                kept = found.rows != own[chosen, None]
                kept[kept.all(axis=1), -1] = False  # an approximate index may miss it
            similarities[chosen] = found.similarities[kept].reshape(-1, n)
            rows[chosen] = found.rows[kept].reshape(-1, n)
    label_codes = item_codes[rows]
    of_means = similarities
    if gallery.labels:
        of_means = np.empty_like(similarities)
        for row, direction in enumerate(directions):
            of_means[row] = means.similarities(direction, label_codes[row], similarities[row])
        if own is not None:
            rest = _means_without(gallery, item_codes, own)
            without = np.einsum("bd,bd->b", directions, rest)[:, None]
            of_means = np.where(label_codes == codes[:, None], without, of_means)
    return Observed(
        variances,
        outlier_signals,
        similarities,
        label_codes,
        of_means,
        label_codes == codes[:, None],
    )


def _means_without(
    gallery: Gallery, item_codes: NDArray[np.int32], own: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The mean direction (B, D) of the label of each item ``own`` (B,), without that item."""
    rest = label_sums(gallery, item_codes)[item_codes[own]] - gallery.directions(own)
    return unit_rows(rest.astype(np.float32))  # no direction of a label that has no other item


def _codes(
    gallery: Gallery, queries: LabelledImages
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Codes of all items and of the queries: a query matches the items that share its code."""
    rows = np.arange(gallery.n_items)
    if gallery.labels:
        names, item_codes = list(gallery.labels), gallery.label_codes(rows)
    else:
        names = [item.id for item in gallery.items(rows)]
        item_codes = rows.astype(np.int32)
    code_of = {name: code for code, name in enumerate(names)}
    codes = np.array([code_of.get(label, -2) for label in queries.labels], dtype=np.int32)
    return item_codes, codes
