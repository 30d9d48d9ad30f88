"""Reads a folder of images. The first sub-folder in an image's path can be the label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

from index_builder.datasets.image_files import LeftOut, files_below, head_of
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.places import MISSING, LocalPlaces


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file in a local folder or in a bucket.

    Attributes
    ----------
    name : path of the file, relative to the folder.
    place : function that returns the place of the file.
    head : function that returns the first bytes of the file; see `LeftOut.takes`.
    """

    name: str
    place: Callable[[], Place]
    head: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Folder:
    """The images of a folder. An image's id is its path, relative to the folder.

    Attributes
    ----------
    files : function that yields all files in a fixed order, and records left-out files.
    labelled : whether the first sub-folder in an image's path is the label. An image without
        sub-folder has no label.
    """

    files: Callable[[LeftOut], Iterable[NamedFile]]
    labelled: bool = True

    def entries(self, _scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the images, in the order of the files."""
        for file in self.files(left_out):
            if left_out.takes(file.name, file.head):
                parts = PurePosixPath(file.name).parts
                label = parts[0] if self.labelled and len(parts) > 1 else None
                yield Entry(file.name, file.place(), label, {}, file.name)


def local_files(folder: Path, root: Path, left_out: LeftOut) -> Iterator[NamedFile]:
    """Yield the files below a local folder, sorted.

    Parameters
    ----------
    root : folder that must contain the targets of all links.

    Raises
    ------
    DatasetError : a link leads out of ``root``; raised by `NamedFile.place`.
    """
    places = LocalPlaces(root, folder)

    for name in files_below(folder, root, left_out):
        place = cache(partial(places.place, name, name))
        yield NamedFile(name, place, partial(_head, place))


def _head(place: Callable[[], Place]) -> bytes:
    found = place()
    if found.size == MISSING:
        raise FileNotFoundError(found.path)
    return head_of(Path(found.path))
