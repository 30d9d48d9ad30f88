"""A folder of images; sub-folders may be labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from index_builder.datasets.other_formats import OtherFormats
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.places import LocalPlaces
from model_store.errors import DatasetError
from model_store.images import SUFFIXES

NamedFile = tuple[str, Callable[[], Place]]
"""The path of a file from the top of its folder, and how to find out its place."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Every image in ``files``, by its path from the folder's top, which is its id.

    Attributes
    ----------
    files : all files, in an order that is always the same; see `LocalFiles`.
    labelled : whether the first sub-folder is the label; images in none have no label.
    """

    files: Iterable[NamedFile]
    labelled: bool = True

    def entries(self, _scratch: Path, others: OtherFormats, /) -> Iterator[Entry]:
        """The images, in the order of the files."""
        for name, place in self.files:
            if not name.lower().endswith(tuple(SUFFIXES)):
                others.look_at(name)
                continue
            parts = PurePosixPath(name).parts
            label = parts[0] if self.labelled and len(parts) > 1 else None
            yield Entry(_as_text(name), place(), label, {}, name)


class LocalFiles:
    """The files below a folder of this machine, sorted; folders that are links are not entered.

    Parameters
    ----------
    root : what links may point into.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._places = LocalPlaces(root, folder)

    def __iter__(self) -> Iterator[NamedFile]:
        for name in _files(self._folder, ""):
            yield name, partial(self._places.place, name, name)


def _files(folder: Path, prefix: str) -> Iterator[str]:
    """Names of all files below ``folder``, as POSIX paths from the top, one folder at a time."""
    with os.scandir(folder) as found:
        members = sorted(found, key=lambda one: one.name)
    for member in members:
        if member.is_dir(follow_symlinks=False):
            yield from _files(Path(member.path), f"{prefix}{member.name}/")
        else:
            yield prefix + member.name


def _as_text(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"The file name {name!r} is not UTF-8, so it cannot be an id. Rename the file."
        ) from error
    return name
