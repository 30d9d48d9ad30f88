"""Near-duplicates: one photograph stored again, in another size or format, or barely touched up.

They are found by a fingerprint of the picture, not by the encoder, whose errors would otherwise
decide which queries it is tested with.
"""

from __future__ import annotations

import logging

import faiss
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

logger = logging.getLogger(__name__)

Fingerprint = NDArray[np.float32]

SIDE = 16
"""Cells of a fingerprint, each way."""

BLUR = 2.0
"""Standard deviation, in cells, of the Gaussian that is subtracted. Without it, products on a white
ground are
all similar, and hundreds of them form one chain."""

LEAST_SIDE = 64
"""Pixels of the longer side: smaller pictures are drawings and icons, which are equal at 16 cells
although they show different things."""

LEAST_SPREAD = 4.0
"""Standard deviation in grey levels, of 255: below it there is nothing to tell pictures by."""

SAME = 0.98
"""Correlation of near-duplicates. Of Caltech-101's and CUB's photographs 99 % keep 0.998 in JPEG of
quality 30 or at half the size; a crop by 1.5 % is found in six of ten, one by 3 % in one of ten.
Of 19,280 drawings of Omniglot, 26 have a twin, at most 3 together."""

N_NEIGHBOURS = 16
"""Pictures that one is compared with; of a larger cluster each still has neighbours in it."""

N_EXACT = 20_000
"""Pictures up to which all are compared with all."""

N_PROBES = 6
"""Number of nearest parts that are searched, where many pictures are divided into parts."""

N_MOST = 500_000
"""Pictures whose fingerprints fit into half a gigabyte."""


def fingerprint(pixels: NDArray[np.uint8]) -> Fingerprint | None:
    """Return the standardised, high-passed grey picture at 16 × 16, (256,) of unit norm.

    None for a picture that is too small, or shows nothing.

    Parameters
    ----------
    pixels : (H, W, 3), or (H, W) grey.
    """
    if max(pixels.shape[:2]) < LEAST_SIDE:
        return None
    small = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    grey = np.asarray(small, dtype=np.float32)
    cells = (grey - gaussian_filter(grey, BLUR)).ravel()
    cells -= cells.mean()
    norm = float(np.linalg.norm(cells))
    if norm < LEAST_SPREAD * SIDE:
        return None
    result: Fingerprint = cells / np.float32(norm)
    return result


def near_duplicates(fingerprints: Fingerprint) -> NDArray[np.int64]:
    """Return pairs (P, 2) of near-duplicates; beyond `N_MOST` pictures none, with a warning.

    Parameters
    ----------
    fingerprints : (N, 256).
    """
    n, dim = fingerprints.shape
    if n > N_MOST:
        logger.warning(
            "near-duplicates are not looked for among %d pictures (at most %d): say in the column "
            "`group` of a manifest which images show the same thing",
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
    """Return pairs (P, 2) of near-duplicates among pictures, some of which have no fingerprint."""
    known = [place for place, one in enumerate(fingerprints) if one is not None]
    stacked = np.array([fingerprints[place] for place in known], dtype=np.float32)
    return np.array(known, dtype=np.int64)[near_duplicates(stacked.reshape(-1, SIDE**2))]
