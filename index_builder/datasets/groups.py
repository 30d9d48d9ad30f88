"""Divides images into two parts without splitting a group; near-duplicates form groups.

Near-duplicates are found by a fingerprint of the pixels, not by the encoder. If embeddings were
compared instead, errors of the encoder would affect the choice of the encoder's test queries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import faiss
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Integers = NDArray[np.int64]


def united(n: int, pairs: Iterable[Integers]) -> Integers:
    """Return the group number (n,) of each image; groups are connected components of ``pairs``.

    Parameters
    ----------
    pairs : arrays (P, 2); the two images of a pair belong to the same group.
    """
    first, second = np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs]).T
    links = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(n, n))
    return connected_components(links, directed=False)[1].astype(np.int64)


def pairs_of_equal(codes: Integers) -> Integers:
    """Return pairs (P, 2) that connect all images with the same code; code −1 gives no pairs."""
    order = np.argsort(codes, kind="stable")
    same = (codes[order[1:]] == codes[order[:-1]]) & (codes[order[1:]] >= 0)
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def named_groups(
    pairs: Iterable[Integers], names: Sequence[str | None], ids: Sequence[str]
) -> tuple[str, ...]:
    """Return the name of each image's group; groups are connected components.

    Parameters
    ----------
    pairs : see `united`.
    names : (n,) group that the source names for each image; images with equal names belong to the
        same group, too. None if the source names none.
    ids : (n,) ids of the images.

    Returns
    -------
    (n,) names: the first name in the group; if there is none, ``item`` and the first id.
    """
    code_of = {name: code for code, name in enumerate(dict.fromkeys(names)) if name is not None}
    codes = np.array([-1 if name is None else code_of[name] for name in names], dtype=np.int64)
    numbers = united(len(ids), [*pairs, pairs_of_equal(codes)]).tolist()
    known = [
        (number, name) for number, name in zip(numbers, names, strict=True) if name is not None
    ]
    first = dict(reversed(known))
    for number, item_id in zip(numbers, ids, strict=True):
        first.setdefault(number, f"item {item_id}")
    return tuple(first[number] for number in numbers)


def held_out_groups(
    labels: Integers,
    groups: Integers,
    order: Integers,
    share: float,
    wanted: Integers,
    most: Integers,
) -> NDArray[np.bool_]:
    """Choose whole groups to hold out, with about the wanted number of images of each label.

    Two passes visit the groups in ``order``. The first pass holds out a group if this brings the
    group's labels closer to their wanted numbers. A group is tied if the distance to the wanted
    numbers is the same with and without the group. The first pass considers a tied group only if
    each label of the group already has held-out images. The pass considers at most one tied group
    of each label, and holds out about half of these groups. After the first pass, a label with two
    images, or with a few large groups, possibly has no held-out image. The second pass pools the
    images of all labels without a held-out image. From this pool, the pass holds out the fraction
    ``share`` of the images, but at most one group of each label. For example, if each label has two
    images and ``share`` is 0.2, two of five labels get one held-out image each.

    Parameters
    ----------
    labels : (N,) label code of each image. Codes start at 0 and have no gaps.
    groups : (N,) group code of each image. Codes start at 0 and have no gaps.
    order : (G,) groups in the order in which the passes visit them.
    share : share of the images to hold out.
    wanted : (L,) wanted number of held-out images of each label.
    most : (L,) maximum number of held-out images of each label.

    Returns
    -------
    (G,) mask of the held-out groups.
    """
    division = _Division(labels, groups, len(order), most)
    division.take_by_label(order.tolist(), wanted.tolist())
    division.take_by_share(order.tolist(), share)
    return division.taken


class _Division:
    """Holds out groups in two passes; counts the held-out images of each label.

    Attributes
    ----------
    taken : (G,) mask of the held-out groups.
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
        """First pass: hold out groups that bring their labels closer to the ``wanted`` numbers."""
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
        """Second pass: hold out ``share`` of the images whose label has no held-out image."""
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
            if n_taken + size / 2 <= n_due + 1e-9:  # rounds to whole groups
                self._take(group)
                n_taken += size

    def _parts(self, group: int) -> list[tuple[int, int]]:
        """For each label of a group, return the label and the number of images with this label."""
        span = slice(self._bounds[group], self._bounds[group + 1])
        return list(zip(self._label_of[span], self._sizes[span], strict=True))

    def _take(self, group: int) -> None:
        self.taken[group] = True
        for label, n in self._parts(group):
            self._held[label] += n


logger = logging.getLogger(__name__)

Fingerprint = NDArray[np.float32]

SIDE = 16
"""Width and height of a fingerprint in cells."""

BLUR = 2.0
"""Standard deviation, in cells, of the Gaussian blur that is subtracted. Without the subtraction,
hundreds of products on a white ground would be similar and form one group."""

LEAST_SIDE = 64
"""Minimum longer side in pixels. Images below this size are often drawings and icons. Drawings of
different things may have equal fingerprints."""

LEAST_SPREAD = 4.0
"""Minimum standard deviation in grey levels (0 to 255). Images below this minimum are too uniform
to compare."""

SAME = 0.98
"""Minimum correlation of near-duplicates. After JPEG compression with quality 30, or at half size,
99 % of the photographs of Caltech-101 and CUB have a correlation of at least 0.998 with the
original. With the minimum 0.98, images cropped by 1.5 % are found in 60 % of cases, and images
cropped by 3 % in 10 % of cases. Of 19,280 drawings of Omniglot, 26 have a near-duplicate, in groups
of at most 3."""

N_NEIGHBOURS = 16
"""Number of nearest images that each image is compared with. In a larger group, an image is not
paired with every other image. Chains of pairs still connect the group."""

N_EXACT = 20_000
"""Maximum number of images for an exact comparison of all pairs."""

N_PROBES = 6
"""With more than `N_EXACT` images, the images are divided into clusters. For each image, this
number of nearest clusters is searched."""

N_MOST = 500_000
"""Maximum number of images. The fingerprints of this number of images need half a gigabyte."""


def _blurring() -> Fingerprint:
    """Return the matrix (`SIDE`, `SIDE`) that blurs a column like `scipy.ndimage.gaussian_filter`.

    Columns continue as in a mirror. Two products with the matrix take a tenth of the filter's time,
    and `scipy.ndimage` is not imported.
    """
    reach = round(4 * BLUR)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / BLUR) ** 2)
    mirrored = np.pad(np.eye(SIDE), ((reach, reach), (0, 0)), mode="symmetric")
    shifted = np.lib.stride_tricks.sliding_window_view(mirrored, 2 * reach + 1, axis=0)
    matrix: Fingerprint = (shifted @ (weights / weights.sum())).astype(np.float32)
    return matrix


_BLURRING = _blurring()


def fingerprint(pixels: NDArray[np.uint8]) -> Fingerprint | None:
    """Return the fingerprint (256,): a grey, high-passed picture at 16 × 16; mean 0, norm 1.

    None if the image is too small or too uniform.

    Parameters
    ----------
    pixels : (H, W, 3), or (H, W) grey.
    """
    if max(pixels.shape[:2]) < LEAST_SIDE:
        return None
    small = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    grey = np.asarray(small, dtype=np.float32)
    blurred = (_BLURRING @ grey @ _BLURRING.T).astype(np.float32, copy=False)
    cells = (grey - blurred).ravel()
    cells -= cells.mean()
    norm = float(np.linalg.norm(cells))
    if norm < LEAST_SPREAD * SIDE:
        return None
    result: Fingerprint = cells / np.float32(norm)
    return result


def near_duplicates(fingerprints: Fingerprint) -> NDArray[np.int64]:
    """Return pairs (P, 2) of near-duplicates.

    With more than `N_MOST` images, log a warning and return no pairs.

    Parameters
    ----------
    fingerprints : (N, 256).
    """
    n, dim = fingerprints.shape
    if n > N_MOST:
        logger.warning(
            "near-duplicates are not detected among %d images (at most %d): name images of one "
            "object in the column `group` of a manifest",
            n,
            N_MOST,
        )
    if n < 2 or n > N_MOST:
        return np.empty((0, 2), dtype=np.int64)
    index: faiss.Index = faiss.IndexFlatIP(dim)
    if n > N_EXACT:
        n_parts = int(np.sqrt(n))
        index = faiss.IndexIVFFlat(index, dim, n_parts, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = N_PROBES
        index.train(fingerprints[:: max(1, n // (64 * n_parts))])
    index.add(fingerprints)
    similarities, found = index.search(fingerprints, min(N_NEIGHBOURS, n))
    first, place = np.nonzero((similarities >= SAME) & (found >= 0))
    pairs: NDArray[np.int64] = np.stack([first, found[first, place]], axis=1).astype(np.int64)
    others: NDArray[np.bool_] = pairs[:, 0] != pairs[:, 1]
    return np.compress(others, pairs, axis=0)


def pairs_among(fingerprints: list[Fingerprint | None]) -> NDArray[np.int64]:
    """Return pairs (P, 2) of near-duplicates; images with fingerprint None are in no pair."""
    known = [place for place, one in enumerate(fingerprints) if one is not None]
    stacked = np.array([fingerprints[place] for place in known], dtype=np.float32)
    return np.array(known, dtype=np.int64)[near_duplicates(stacked.reshape(-1, SIDE**2))]
