"""Recall of an index, measured against exact search."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.gallery.index.row_blocks import row_blocks, rows_at

FETCHED = 200
"""Minimum number of candidates to fetch from an approximate index. Candidates are re-ranked by
their stored directions."""

N_NEIGHBOURS = 10
EFFORTS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
"""Values of ``nprobe`` or ``efSearch`` to try, ascending. Most values are a third or a half larger
than the previous value."""

_TIE = 1e-7
"""Two similarities count as equal if they differ by less than this value, because float32 is not
more precise."""


def tenth_similarity(
    directions: NDArray[np.float32], queries: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return each query's similarity to its tenth nearest item; if N < 10, to the farthest item."""
    nearest = np.empty((len(queries), 0), np.float32)
    for rows in row_blocks(directions):
        n = min(N_NEIGHBOURS, len(rows))
        found, _ = faiss.knn(queries, rows, n, faiss.METRIC_INNER_PRODUCT)
        nearest = -np.sort(-np.hstack([nearest, found]), axis=1)[:, :N_NEIGHBOURS]
    tenth: NDArray[np.float32] = nearest[:, -1]
    return tenth


def share_found(
    directions: NDArray[np.float32],
    queries: NDArray[np.float32],
    found: Sequence[NDArray[np.int64]],
    tenth: NDArray[np.float32],
) -> float:
    """Return the recall at 10, averaged over the queries.

    The recall of a query is the share of its ten nearest items that the search found.

    Parameters
    ----------
    found : found rows of each query, padded with −1.
    tenth : result of `tenth_similarity`.
    """
    every = np.unique(np.concatenate(found))
    every = every[every >= 0]
    candidates = rows_at(directions, every)
    shares = []
    for query, rows, least in zip(queries, found, tenth, strict=True):
        similarities = candidates[np.searchsorted(every, rows[rows >= 0])] @ query
        n_found = int((similarities >= least - _TIE).sum())
        shares.append(min(1.0, n_found / min(N_NEIGHBOURS, len(directions))))
    return float(np.mean(shares))
