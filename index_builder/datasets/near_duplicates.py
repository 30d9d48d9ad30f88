"""Near-duplicates: copies of a photograph in another size or format, or with small edits.

Near-duplicates are found by a fingerprint of the pixels, not by the encoder. If embeddings were
compared instead, errors of the encoder would affect the choice of the encoder's test queries.
"""

from __future__ import annotations

import logging

import faiss
import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
