"""What queries look like to an encoder and a gallery: the raw material of calibration."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.indexing import BATCH
from index_builder.progress import track
from model_store.decision import OUTLIER_SIGNALS, OutlierDetector, signals
from model_store.encoder import Encoder
from model_store.gallery import Gallery
from model_store.predictive import spherical_variance
from model_store.search import N_CANDIDATES
from model_store.sphere import unit_direction

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
    matches : (B, n) whether each candidate is a true match.
    """

    spherical_variances: Floats
    outlier_signals: Floats
    similarities: Floats
    label_codes: NDArray[np.int32]
    matches: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.matches)

    def at(self, rows: NDArray[np.int64]) -> Observed:
        """Some of the queries."""
        return Observed(*(getattr(self, field.name)[rows] for field in fields(self)))

    def signals(self, ranks: NDArray[np.int64], outlier_scores: Floats) -> Floats:
        """Signals (B, m, S) at ``ranks`` (m,), or (B, m) where they differ from query to query."""
        return signals(
            self.similarities,
            self.label_codes,
            self.spherical_variances,
            outlier_scores,
            np.broadcast_to(ranks, (len(self), ranks.shape[-1])),
        )


def observe(
    encoder: Encoder,
    gallery: Gallery,
    detector: OutlierDetector,
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
    item_codes, codes = _codes(gallery, queries)
    n = min(N_CANDIDATES, gallery.n_items)
    if hide_label:
        n = min(n, gallery.n_items - int(np.bincount(item_codes[item_codes >= 0]).max()))
    variances = np.empty(len(queries))
    alien = np.empty((len(queries), len(OUTLIER_SIGNALS)))
    similarities = np.empty((len(queries), n), dtype=np.float64)
    rows = np.empty((len(queries), n), dtype=np.int64)
    batches = queries.batches(encoder.metadata.preprocessing, BATCH)
    n_batches = -(-len(queries) // BATCH)
    for positions, images in track(batches, "calibration queries", n_batches):
        embeddings = encoder.encode(images)
        variances[positions] = spherical_variance(embeddings.mean, embeddings.variance)
        alien[positions] = detector.signals(embeddings)
        directions = unit_direction(embeddings.mean)
        for code in np.unique(codes[positions]) if hide_label else [None]:
            chosen = slice(None) if code is None else codes[positions] == code
            allowed = None if code is None else item_codes != code
            found = gallery.candidates(directions[chosen], n, allowed)
            rows[positions[chosen]] = found.rows
            similarities[positions[chosen]] = found.similarities
    label_codes = item_codes[rows]
    return Observed(variances, alien, similarities, label_codes, label_codes == codes[:, None])


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
