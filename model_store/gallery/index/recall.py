"""Recall of an index, measured against exact search."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.gallery.index.row_blocks import row_blocks, rows_at

FETCHED = 200
"""Candidates of an approximate index that are ranked again by their stored directions, at least;
the default of a search."""

N_NEIGHBOURS = 10
EFFORTS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
"""The numbers of lists to probe, or lengths of an HNSW's queue; each about a half more than the one
before."""

_TIE = 1e-7
"""Similarities closer than float32 tells apart are of equal neighbours."""


def tenth_similarity(
    directions: NDArray[np.float32], queries: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Similarity of the tenth nearest item to each of the queries; or of the last."""
    k = min(N_NEIGHBOURS, len(directions))
    nearest = np.empty((len(queries), 0), np.float32)
    for rows in row_blocks(directions):
        found, _ = faiss.knn(queries, rows, min(k, len(rows)), faiss.METRIC_INNER_PRODUCT)
        nearest = -np.sort(-np.hstack([nearest, found]), axis=1)[:, :k]
    tenth: NDArray[np.float32] = nearest[:, -1]
    return tenth


def share_found(
    directions: NDArray[np.float32],
    queries: NDArray[np.float32],
    found: Sequence[NDArray[np.int64]],
    tenth: NDArray[np.float32],
) -> float:
    """Mean share of the ten nearest items among the rows ``found`` for each of the queries.

    Parameters
    ----------
    found : of each query; −1 where there is none.
    tenth : what `tenth_similarity` returned.
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
