"""A folder of images; sub-folders may be labels."""

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
    """A file of a folder, here or in a bucket.

    Attributes
    ----------
    name : path from the top of the folder.
    place : finds out where the file is.
    head : reads its first bytes, see `LeftOut.takes`.
    """

    name: str
    place: Callable[[], Place]
    head: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Folder:
    """Every image in ``files``, by its path from the folder's top, which is its id.

    Attributes
    ----------
    files : gives all files, in an order that is always the same; notes what it leaves out.
    labelled : whether the first sub-folder is the label; images in none have no label.
    """

    files: Callable[[LeftOut], Iterable[NamedFile]]
    labelled: bool = True

    def entries(self, _scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """The images, in the order of the files."""
        for file in self.files(left_out):
            if left_out.takes(file.name, file.head):
                parts = PurePosixPath(file.name).parts
                label = parts[0] if self.labelled and len(parts) > 1 else None
                yield Entry(file.name, file.place(), label, {}, file.name)


def local_files(folder: Path, root: Path, left_out: LeftOut) -> Iterator[NamedFile]:
    """Give the files below a folder of this machine, sorted.

    Parameters
    ----------
    root : what links may point into.

    Raises
    ------
    DatasetError : when a file is opened that a link resolves to a place outside ``root``.
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
