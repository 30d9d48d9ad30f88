"""Divide images into two parts without splitting a group."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Integers = NDArray[np.int64]


def united(n: int, pairs: Iterable[Integers]) -> Integers:
    """Return the number (n,) of each image's group: the connected components of ``pairs``.

    Parameters
    ----------
    pairs : arrays (P, 2) of images of one group.
    """
    first, second = np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs]).T
    links = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(n, n))
    return connected_components(links, directed=False)[1].astype(np.int64)


def pairs_of_equal(codes: Integers) -> Integers:
    """Return pairs (P, 2) that chain the images of equal code; code −1 has no pairs."""
    order = np.argsort(codes, kind="stable")
    same = (codes[order[1:]] == codes[order[:-1]]) & (codes[order[1:]] >= 0)
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def held_out_groups(
    labels: Integers,
    groups: Integers,
    order: Integers,
    share: float,
    wanted: Integers,
    most: Integers,
) -> NDArray[np.bool_]:
    """Choose whole groups to hold out, with about the wanted number of images of each label.

    Groups are visited in ``order``, twice. The first pass holds out a group if its labels then come
    closer to their wanted numbers. On a tie it holds out about half, once for each label that
    already has a held-out image. Some labels then still have no held-out image: those of two
    images, or of a few large groups. The second pass holds out ``share`` of their images together,
    at most one group of each label. With two images in each label and a share of 0.2, it holds out
    one image of two labels in five.

    Parameters
    ----------
    labels, groups : (N,) codes from 0 without gaps of each image's label and group.
    order : (G,) groups in the order of visits.
    share : share of the images to hold out.
    wanted : (L,) wanted number of held-out images of each label.
    most : (L,) maximum number of held-out images of each label.

    Returns
    -------
    (G,) whether the group is held out.
    """
    division = _Division(labels, groups, len(order), most)
    division.take_by_label(order.tolist(), wanted.tolist())
    division.take_by_share(order.tolist(), share)
    return division.taken


class _Division:
    """A division under construction.

    Attributes
    ----------
    taken : (G,) whether a group is held out.
    """

    def __init__(self, labels: Integers, groups: Integers, n_groups: int, most: Integers) -> None:
        n_labels = len(most)
        keys, counts = np.unique(groups * n_labels + labels, return_counts=True)
        self._bounds = np.searchsorted(keys, np.arange(n_groups + 1) * n_labels).tolist()
        self._label_of, self._sizes = (keys % n_labels).tolist(), counts.tolist()
        self._n_of_label = np.bincount(labels, minlength=n_labels).tolist()
        self._most = most.tolist()
        self._held = [0] * n_labels
        self.taken = np.zeros(n_groups, dtype=bool)

    def take_by_label(self, visits: list[int], wanted: list[int]) -> None:
        """Hold out groups that bring their labels closer to the ``wanted`` numbers."""
        tied = [False] * len(wanted)
        n_due, n_taken = 0.0, 0
        for group in visits:
            parts = self._parts(group)
            change = sum(
                abs(self._held[label] + n - wanted[label]) - abs(self._held[label] - wanted[label])
                for label, n in parts
            )
            if change > 0 or any(self._held[label] + n > self._most[label] for label, n in parts):
                continue
            if change < 0:
                self._take(group)
            elif all(self._held[label] and not tied[label] for label, _ in parts):
                size = sum(n for _, n in parts)
                n_due += size / 2
                if n_taken + size / 2 <= n_due:
                    self._take(group)
                    n_taken += size
                for label, _ in parts:
                    tied[label] = True

    def take_by_share(self, visits: list[int], share: float) -> None:
        """Hold out groups of labels without held-out images, ``share`` of their images in total."""
        gave_nothing = [n == 0 for n in self._held]
        n_due, n_taken = 0.0, 0
        for group in visits:
            parts = self._parts(group)
            if not all(gave_nothing[label] and n <= self._most[label] for label, n in parts):
                continue
            for label, _ in parts:
                gave_nothing[label] = False
                n_due += share * self._n_of_label[label]
            size = sum(n for _, n in parts)
            if n_taken + size / 2 <= n_due + 1e-9:  # as close as whole groups allow
                self._take(group)
                n_taken += size

    def _parts(self, group: int) -> list[tuple[int, int]]:
        """Return the labels of a group, and the number of its images with each."""
        span = slice(self._bounds[group], self._bounds[group + 1])
        return list(zip(self._label_of[span], self._sizes[span], strict=True))

    def _take(self, group: int) -> None:
        self.taken[group] = True
        for label, n in self._parts(group):
            self._held[label] += n
