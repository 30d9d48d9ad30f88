"""A folder of images with one sub-folder for each label; the manifest of a copied source.

The manifest is beside the copies, and keeps what a file name cannot keep. It has the format that
`vouch-build index` reads.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from index_builder.datasets.groups import (
    Fingerprint,
    fingerprint,
    named_groups,
    pairs_among,
    pairs_of_equal,
)
from index_builder.datasets.image_files import (
    LeftOut,
    Reason,
    image_files,
    label_messages,
    nested_labels_message,
    require_readable,
)
from index_builder.datasets.images import LabelledImages, Pixels, from_files
from index_builder.progress import track
from model_store.errors import DatasetError, ImageError
from model_store.files import PARTIAL
from model_store.images import FORMATS, decode_image

COPIED_ITEMS = ".vouch-items.jsonl"
"""Name of the manifest in a folder of copies. A user's folder does not contain this name by chance.
"""


@dataclass(frozen=True, slots=True)
class CopiedItem:
    """An item of the source, and the copy of its image.

    Attributes
    ----------
    path : the copy, relative to the folder.
    id, label, group, source, metadata : see `Entry`.
    """

    path: str
    id: str
    label: str | None = None
    group: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def write_copied_items(folder: Path, items: Iterable[CopiedItem]) -> Path:
    """Write the manifest of the copies in ``folder``; return its path."""
    path = folder / COPIED_ITEMS
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("w", encoding="utf-8") as file:
        for one in items:
            line = {name: getattr(one, name) for name in one.__slots__}
            file.write(json.dumps(line) + "\n")
    partial.replace(path)
    return path


def copied_items(folder: Path) -> list[CopiedItem] | None:
    """Return the items of a folder of copies; None if the folder is no folder of copies."""
    path = folder / COPIED_ITEMS
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return [CopiedItem(**json.loads(line)) for line in file]


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

    In a folder of copies, the manifest of the copies gives the ids, labels, groups, sources and
    metadata; see `CopiedItem`. If ``labelled`` is False, every image has its own label. Copies,
    near-duplicates and images of one group of the manifest share a group. Unreadable images and
    other files are left out. The log states how many files were left out, and why.

    Raises
    ------
    DatasetError : the folder does not exist, or has no readable labelled image; or the labels are
        one folder deeper, see `nested_labels_message`.
    TooManyBadImages : see `require_readable`.
    """
    root = root.expanduser()
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder.")
    left_out = LeftOut()
    copied = copied_items(root)
    items = list(_of_folders(root, left_out, labelled=labelled) if copied is None else copied)
    if labelled:
        items = _with_labels(items, left_out, of_folders=copied is None)
    if left_out.files:
        logger.warning("%s", left_out.sentence)
    room = _Room(MOST_KEPT_BYTES)
    with ThreadPoolExecutor() as pool:  # Pillow releases the GIL to decode
        looked_at = pool.map(partial(_look_at, room, root), items)
        pictures = list(track(looked_at, "checking images", len(items)))
    looked = list(zip(items, pictures, strict=True))
    bad = {item.id: one for item, one in looked if isinstance(one, str)}
    for name, why in bad.items():
        logger.warning("left out %s: %s", name, why)
    seen = [(item, one) for item, one in looked if not isinstance(one, str)]
    found = [item for item, _ in seen]
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
            f"({', '.join(FORMATS)}) in it. For labels in a table, name a CSV file with the "
            "columns path and label. If each image is its own class, use --no-labels. "
            f"{left_out.sentence}".strip()
        )
    require_readable(bad, len(items))
    names = [one.path for one in found]
    labels = [str(one.label) if labelled else one.id for one in found]
    for message in label_messages(labels if labelled else []):
        logger.warning("%s", message)
    if labelled:
        _warn_of_contradictions(found, [picture for _, picture in seen])
    decoded = {row: one.pixels for row, (_, one) in enumerate(seen) if one.pixels is not None}
    digests = [one.of_file for _, one in seen]
    images = from_files(root, names, labels, digests, decoded)
    sources, metadata = zip(*((one.source or "", one.metadata) for one in found), strict=True)
    return replace(
        images,
        ids=tuple(one.id for one in found),
        groups=_groups([picture for _, picture in seen], found),
        sources=sources if any(sources) else None,
        metadata=metadata if any(metadata) else None,
    )


def _with_labels(
    items: Sequence[CopiedItem], left_out: LeftOut, *, of_folders: bool
) -> list[CopiedItem]:
    """Return the items with a label; record the others.

    Raises
    ------
    DatasetError : no image of a table has a label; or folders are labels, but probably the wrong
        ones.
    """
    if items and not of_folders and all(one.label is None for one in items):
        raise DatasetError(
            f"None of the {len(items):,} images has a label. A table has the labels in the column "
            "label. If each image is its own class, use --no-labels."
        )
    for one in items:
        if one.label is None:
            left_out.add(one.id, Reason.no_label if of_folders else Reason.unlabelled)
    found = [one for one in items if one.label is not None]
    nested = nested_labels_message(
        (str(one.label) for one in found), (one.id for one in found if of_folders)
    )
    if nested:
        raise DatasetError(nested)
    return found


def _of_folders(root: Path, left_out: LeftOut, *, labelled: bool) -> Iterator[CopiedItem]:
    """Yield the images of a folder that is no folder of copies."""
    for name in image_files(root, left_out):
        label, _, rest = name.partition("/")
        yield CopiedItem(name, name, label if labelled and rest else None)


def _warn_of_contradictions(items: Sequence[CopiedItem], pictures: Sequence[_Picture]) -> None:
    """Log a warning if copies of an image have different labels."""
    copies: dict[bytes, dict[str | None, str]] = {}
    for item, picture in zip(items, pictures, strict=True):
        copies.setdefault(picture.digest, {}).setdefault(item.label, item.id)
    found = [list(ids.values()) for ids in copies.values() if len(ids) > 1]
    if found:
        logger.warning(
            "Copies of an image have different labels (%d %s): %s. One of the labels is wrong, or "
            "the image shows both. An answer with the other label counts as wrong: keep one copy "
            "of each.",
            len(found),
            "image" if len(found) == 1 else "images, for example",
            "; ".join(" and ".join(ids) for ids in found[:3]),
        )


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


def _groups(pictures: Sequence[_Picture], items: Sequence[CopiedItem]) -> tuple[str, ...] | None:
    """Return the group of each image; None if the manifest names none and no two belong together.

    Copies, near-duplicates, and images with the same group in the manifest belong together.
    """
    digests = np.array([one.digest.hex() for one in pictures])
    copies = pairs_of_equal(np.unique(digests, return_inverse=True)[1].astype(np.int64))
    alike = pairs_among([one.fingerprint for one in pictures])
    groups = named_groups([copies, alike], [one.group for one in items], [one.id for one in items])
    belong = len(set(groups)) < len(groups) or any(one.group for one in items)
    return groups if belong else None


def _look_at(room: _Room, root: Path, item: CopiedItem) -> _Picture | str:
    """Decode an image; return the reason if it cannot be read."""
    try:
        data = (root / item.path).read_bytes()
        decoded = decode_image(data, smallest_side=SEEN_SIDE)
    except (ImageError, OSError) as error:
        return str(error)
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
