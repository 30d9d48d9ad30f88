"""A folder of images with one sub-folder for each label."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from index_builder.datasets.images import LabelledImages, from_files
from index_builder.other_formats import OtherFormats
from index_builder.progress import track
from model_store.errors import DatasetError, ImageError
from model_store.images import SUFFIXES, decode_image

logger = logging.getLogger(__name__)


def folder(root: Path, *, labelled: bool = True) -> LabelledImages:
    """Every image below ``root``; its id is the path from there, its label the first sub-folder.

    Not ``labelled``, every image is its own label, wherever it lies.
    An image that cannot be read is left out, and the log says so: one bad file spoils no build.

    Raises
    ------
    DatasetError : no folder, or no readable images in it, or none in sub-folders.
    """
    root = root.expanduser()
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder.")
    others = OtherFormats()
    candidates = []
    for path in sorted(root.rglob("*")):
        if (path.parent == root and labelled) or not path.is_file():
            continue
        if path.suffix.lower() in SUFFIXES:
            candidates.append(path)
        else:
            others.look_at(path.relative_to(root).as_posix())
    if others.names:
        logger.warning("%s", others.sentence)
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
        checks = pool.map(_is_readable, candidates)
        readable = list(track(checks, "checking images", len(candidates)))
    found = [path for path, is_readable in zip(candidates, readable, strict=True) if is_readable]
    if not found and not labelled:
        raise DatasetError(f"{root} holds no images ({', '.join(sorted(SUFFIXES))}).")
    if not found:
        raise DatasetError(
            f"{root} holds no labelled images: wanted one sub-folder for each label, with images "
            f"({', '.join(sorted(SUFFIXES))}) in it."
        )
    names = [path.relative_to(root).as_posix() for path in found]
    return from_files(root, names, [name.split("/")[0] for name in names] if labelled else names)


def _is_readable(path: Path) -> bool:
    try:
        decode_image(path.read_bytes(), smallest_side=1)  # as quickly as it can be read
    except (ImageError, OSError) as error:
        logger.warning("left out %s/%s: %s", path.parent.name, path.name, error)
        return False
    return True
