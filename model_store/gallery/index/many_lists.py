"""Inverted lists that are very many: centroids are learned, and items assigned, in two levels.

Each centroid compared with each item costs N^1.5: with ten million items and 8,192 lists a quarter
of an hour of one processor. In two levels the centroids come in groups of near ones, and an item is
compared with those of a few groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import faiss
import numpy as np
from faiss.contrib.ivf_tools import add_preassigned
from numpy.typing import NDArray

LEAST_LISTS = 8_192
"""Number of lists from which there are two levels: 2 √N, of about eight million items."""

GROUPS_LOOKED_AT = 8
"""Groups of centroids that an item is compared with. Of 10,000 of ten million items 99.97 % lie in
their nearest list then (embeddings of Fashion-MNIST, moved by noise)."""

_ROUNDS = 10
"""The rounds of k-means, as many as FAISS takes for inverted lists."""


def are_many(index: Any) -> bool:  # noqa: ANN401 - FAISS has no types
    """Return whether an index has enough lists for two levels to pay off."""
    return getattr(index, "nlist", 0) >= LEAST_LISTS


def learn_lists(index: Any, points: NDArray[np.float32], seed: int) -> None:  # noqa: ANN401
    """Give an index its centroids, learned from ``points`` (n, D); `train` then leaves them.

    Points fall into groups, and those of each learn as many centroids as are its share. A group of
    too few points has none, at which `faiss.contrib.clustering` would fail.
    """
    first = _learned(points, _n_groups(index), seed)
    _, group_of = first.assign(points)
    order = np.argsort(group_of, kind="stable")
    ends = np.cumsum(np.bincount(group_of, minlength=first.k))
    shares = np.diff(ends * index.nlist // len(points), prepend=0)
    for members, share in zip(np.split(order, ends[:-1]), shares.tolist(), strict=True):
        if share:
            index.quantizer.add(_learned(points[members], share, seed).centroids)


def _learned(points: NDArray[np.float32], n: int, seed: int) -> faiss.Kmeans:
    found = faiss.Kmeans(points.shape[1], n, niter=_ROUNDS, seed=seed, min_points_per_centroid=1)
    found.train(points)
    return found


def add_to_lists(index: Any, blocks: Iterable[NDArray[np.float32]]) -> None:  # noqa: ANN401
    """Add directions (n, D), each to a list whose centroid is near."""
    centroids = index.quantizer.reconstruct_n(0, index.nlist)
    groups = faiss.IndexFlatL2(index.d)
    near = faiss.IndexIVFFlat(groups, index.d, _n_groups(index))
    near.cp.min_points_per_centroid = 1
    near.train(centroids)
    near.add(centroids)
    near.nprobe = GROUPS_LOOKED_AT
    for rows in map(np.ascontiguousarray, blocks):
        _, lists = near.search(rows, 1)
        add_preassigned(index, rows, lists[:, 0])


def _n_groups(index: Any) -> int:  # noqa: ANN401 - FAISS has no types
    return math.isqrt(index.nlist)
