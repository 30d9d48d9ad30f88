"""A folder of images; sub-folders may be labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from index_builder.datasets.other_formats import OtherFormats
from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.places import Boundary
from model_store.errors import DatasetError
from model_store.images import SUFFIXES


@dataclass(frozen=True, slots=True)
class Folder:
    """Every image below ``path``, by its path from there, which is its id.

    Attributes
    ----------
    root : what links may point into.
    labelled : whether the first sub-folder is the label; images in none have no label.
    """

    path: Path
    root: Path
    labelled: bool = True

    def entries(self, _scratch: Path, others: OtherFormats, /) -> Iterator[Entry]:
        """The images, sorted; folders that are links are not entered."""
        boundary = Boundary(self.root)
        for name in _files(self.path, ""):
            if not name.lower().endswith(tuple(SUFFIXES)):
                others.look_at(name)
                continue
            place = boundary.place(self.path / name, name)
            parts = PurePosixPath(name).parts
            label = parts[0] if self.labelled and len(parts) > 1 else None
            yield Entry(_as_text(name), place, label, {}, name)


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
            f"The file name {name!r} is not UTF-8, so it cannot be an id. Rename the file, or give "
            "it an id in a manifest."
        ) from error
    return name
