"""A folder of images with one sub-folder for each label."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from index_builder.datasets.groups import (
    Fingerprint,
    fingerprint,
    pairs_among,
    pairs_of_equal,
    united,
)
from index_builder.datasets.image_files import LeftOut, Reason, image_files
from index_builder.datasets.images import LabelledImages, Pixels, from_files
from index_builder.progress import track
from model_store.errors import DatasetError, ImageError
from model_store.images import FORMATS, decode_image

logger = logging.getLogger(__name__)

SEEN_SIDE = 512
"""Images are decoded so that they can be compared. Large JPEGs are decoded at a fraction of their
size, but their shorter side keeps at least this number of pixels."""


MOST_KEPT_BYTES = 2**28
"""Memory limit, in bytes, for decoded images that are kept for later steps. A small collection is
thus decoded only once."""


@dataclass(frozen=True, slots=True)
class _Picture:
    """An image, with a digest and a fingerprint to compare it with other images.

    Attributes
    ----------
    digest : SHA-256 of the pixels.
    of_file : SHA-256 of the file.
    fingerprint : see `index_builder.datasets.groups`.
    losses : see `DecodedImage.losses`.
    pixels : the decoded image; None if it was decoded at a fraction of its size or does not fit
        into the memory budget.
    """

    digest: bytes
    of_file: bytes
    fingerprint: Fingerprint | None
    losses: tuple[str, ...] = ()
    pixels: Pixels | None = None


def folder(root: Path, *, labelled: bool = True) -> LabelledImages:
    """Return the images below ``root``; ids are relative paths, and labels are first sub-folders.

    If ``labelled`` is False, every image has its own label. Copies and near-duplicates share a
    group. Unreadable images and other files are left out. The log states how many files were left
    out, and why.

    Raises
    ------
    DatasetError : the folder does not exist, or has no readable labelled image.
    """
    root = root.expanduser()
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder.")
    left_out = LeftOut()
    candidates = []
    for name in image_files(root, left_out):
        if labelled and "/" not in name:
            left_out.add(name, Reason.no_label)
        else:
            candidates.append(root / name)
    if left_out.files:
        logger.warning("%s", left_out.sentence)
    room = _Room(MOST_KEPT_BYTES)
    with ThreadPoolExecutor() as pool:  # Pillow releases the GIL to decode
        looked_at = pool.map(partial(_look_at, room), candidates)
        pictures = list(track(looked_at, "checking images", len(candidates)))
    seen = [(path, one) for path, one in zip(candidates, pictures, strict=True) if one is not None]
    found = [path for path, _ in seen]
    losses = Counter(sentence for _, one in seen for sentence in one.losses)
    for sentence, n_images in losses.most_common():
        logger.warning("%d of %d images: %s", n_images, len(seen), sentence)
    if not found and not labelled:
        raise DatasetError(
            f"{root} holds no images ({', '.join(FORMATS)}). {left_out.sentence}".strip()
        )
    if not found:
        raise DatasetError(
            f"{root} holds no labelled images: wanted one sub-folder for each label, with images "
            f"({', '.join(FORMATS)}) in it. {left_out.sentence}".strip()
        )
    names = [path.relative_to(root).as_posix() for path in found]
    labels = [name.split("/")[0] for name in names] if labelled else names
    decoded = {row: one.pixels for row, (_, one) in enumerate(seen) if one.pixels is not None}
    digests = [one.of_file for _, one in seen]
    images = from_files(root, names, labels, digests, decoded)
    return replace(images, groups=_groups([picture for _, picture in seen]))


class _Room:
    """Thread-safe memory budget for decoded images, in bytes."""

    def __init__(self, n_bytes: int) -> None:
        self._left, self._lock = n_bytes, Lock()

    def takes(self, pixels: Pixels) -> bool:
        """If an image fits into the budget, subtract its size; return whether the image fits."""
        with self._lock:
            fits = pixels.nbytes <= self._left
            self._left -= pixels.nbytes if fits else 0
        return fits


def _groups(pictures: Sequence[_Picture]) -> tuple[str, ...] | None:
    """Return the group of each image; None if no two images are copies or near-duplicates."""
    digests = np.array([one.digest.hex() for one in pictures])
    copies = pairs_of_equal(np.unique(digests, return_inverse=True)[1].astype(np.int64))
    alike = pairs_among([one.fingerprint for one in pictures])
    if not len(copies) and not len(alike):
        return None
    return tuple(str(number) for number in united(len(pictures), [copies, alike]).tolist())


def _look_at(room: _Room, path: Path) -> _Picture | None:
    try:
        data = path.read_bytes()
        decoded = decode_image(data, smallest_side=SEEN_SIDE)
    except (ImageError, OSError) as error:
        logger.warning("left out %s/%s: %s", path.parent.name, path.name, error)
        return None
    pixels = decoded.pixels
    content = repr(pixels.shape).encode() + pixels.tobytes()
    pixels.setflags(write=False)  # all later steps share the array
    is_whole = pixels.shape[:2] == (decoded.height, decoded.width)
    return _Picture(
        hashlib.sha256(content).digest(),
        hashlib.sha256(data).digest(),
        fingerprint(pixels),
        decoded.losses,
        pixels if is_whole and room.takes(pixels) else None,
    )
