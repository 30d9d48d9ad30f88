"""Caltech-101 (Fei-Fei et al. 2004): photographs of objects of 101 categories."""

from __future__ import annotations

import hashlib
import zipfile
from functools import cache
from pathlib import Path

import numpy as np

from index_builder.datasets.images import LabelledImages, Pixels, from_files
from index_builder.reproduction.datasets.official import Official, Origin, Publication
from model_store.errors import DatasetError
from model_store.images import decode_image

CALTECH = Publication(
    "Caltech-101",
    "",
    "caltech-101/101_ObjectCategories/<category>/*.jpg, or caltech101*/*.zip with the same files",
    "https://data.caltech.edu/records/mzrjq-6wc02",
    {"all": (8_677, 101)},
)
_CATEGORIES = "101_ObjectCategories"
_NO_CATEGORY = "BACKGROUND_Google"
_SUFFIXES = (".jpg", ".webp", ".png")


def caltech101(origin: Origin) -> Official:
    """Load Caltech-101 without its background category: part ``all``. A label is a category.

    Raises
    ------
    DatasetError
    """
    folder = origin.root / "caltech-101" / _CATEGORIES
    archives = sorted(origin.root.glob("caltech101*/*.zip"))
    if folder.is_dir():
        names = sorted(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.suffix in _SUFFIXES
        )
        names = [name for name in names if not name.startswith(_NO_CATEGORY)]
        images = from_files(folder, names, [name.split("/")[0] for name in names])
    elif archives:
        images = _archived(archives[0])
    else:
        raise DatasetError(f"Caltech-101: {folder} is missing. {CALTECH.how_to_get(origin)}")
    return CALTECH.checked(origin, {"all": images})


def _archived(path: Path) -> LabelledImages:
    """Read the images of a .zip file; memory holds encoded images, not pixels."""
    try:
        with zipfile.ZipFile(path) as archive:
            contents = {
                entry: archive.read(entry)
                for entry in sorted(archive.namelist())
                if entry.endswith(_SUFFIXES) and _NO_CATEGORY not in entry
            }
    except (OSError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} cannot be read ({error}). Fetch it again.") from error
    names = list(contents)

    def read(row: int, smallest_side: int | None) -> Pixels:
        return decode_image(contents[names[row]], smallest_side=smallest_side).pixels

    @cache
    def content(row: int) -> bytes:
        return hashlib.sha256(contents[names[row]]).digest()

    labels = tuple(name.split("/")[-2] for name in names)
    return LabelledImages(tuple(names), labels, read, np.arange(len(names)), content=content)
