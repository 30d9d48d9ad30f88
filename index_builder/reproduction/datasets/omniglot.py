"""Omniglot (Lake et al. 2015): 1,623 characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from index_builder.datasets.images import LabelledImages, Pixels
from index_builder.reproduction.datasets.official import Official, Origin, Publication
from model_store.errors import DatasetError

OMNIGLOT = Publication(
    "Omniglot",
    "omniglot",
    "images_background and images_evaluation: each is a folder with "
    "<alphabet>/character<NN>/*.png, or a .zip or .tar.xz file of this folder",
    "https://github.com/brendenlake/omniglot",
    {"background": (19_280, 964), "evaluation": (13_180, 659)},
)
_ARCHIVES = (".zip", ".tar.xz", ".tar.gz", ".tar")


def omniglot(origin: Origin) -> Official:
    """Load Omniglot: parts ``background`` (training) and ``evaluation``, with different characters.

    A label is "<alphabet>/character<NN>".

    Raises
    ------
    DatasetError
    """
    parts = {part: _part(origin, f"images_{part}") for part in ("background", "evaluation")}
    return OMNIGLOT.checked(origin, parts)


def _part(origin: Origin, name: str) -> LabelledImages:
    folder = origin.root / OMNIGLOT.folder
    found = [folder / name] if (folder / name).is_dir() else []
    found += [folder / f"{name}{suffix}" for suffix in _ARCHIVES]
    place = next((path for path in found if path.exists()), None)
    if place is None:
        raise DatasetError(f"Omniglot: {folder / name} is missing. {OMNIGLOT.how_to_get(origin)}")
    try:
        files = dict(sorted(_files(place)))
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{place} cannot be read ({error}). Fetch it again.") from error
    names, contents = list(files), list(files.values())

    def read(row: int, _smallest_side: int | None) -> Pixels:
        with Image.open(io.BytesIO(contents[row])) as image:
            return np.asarray(image.convert("RGB"))

    def content(row: int) -> bytes:
        return hashlib.sha256(contents[row]).digest()

    labels = tuple("/".join(name.split("/")[:2]) for name in names)
    return LabelledImages(tuple(names), labels, read, np.arange(len(names)), content=content)


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name "<alphabet>/character<NN>/<drawing>.png" and the content of each drawing."""
    if place.is_dir():
        for path in place.rglob("*.png"):
            yield path.relative_to(place).as_posix(), path.read_bytes()
    elif place.suffix == ".zip":
        with zipfile.ZipFile(place) as archive:
            for entry in archive.namelist():
                if entry.endswith(".png"):
                    yield _below_root(entry), archive.read(entry)
    else:
        with tarfile.open(place) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(".png") else None
                if file is not None:
                    yield _below_root(member.name), file.read()


def _below_root(entry: str) -> str:
    return "/".join(PurePosixPath(entry).parts[-3:])
