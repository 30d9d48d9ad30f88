"""Recall of an index, measured against exact search."""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

FETCHED = 200
"""Candidates of an approximate index that are ranked again by their stored directions, at least;
what a search asks for by itself."""

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
    similarities, _ = faiss.knn(queries, directions, k, faiss.METRIC_INNER_PRODUCT)
    tenth: NDArray[np.float32] = similarities[:, -1]
    return tenth


def share_found(
    directions: NDArray[np.float32],
    query: NDArray[np.float32],
    candidates: NDArray[np.int64],
    least: float,
) -> float:
    """Share of the ten nearest items among ``candidates``, which hold −1 where there is none."""
    similarities = directions[candidates[candidates >= 0]] @ query
    n_found = int((similarities >= least - _TIE).sum())
    return min(1.0, n_found / min(N_NEIGHBOURS, len(directions)))
