"""The protocol of sources, the folder that must contain all images of a source, and its images.

The first sub-folder in an image's path can be its label.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Protocol
from urllib.parse import unquote

from index_builder.datasets.image_files import LeftOut, files_below, head_of
from index_builder.indexing.blocks import Entry, Place
from index_builder.storage import is_url, shown
from index_builder.storage.urls import WEB, joined, scheme_of
from model_store.errors import DatasetError


class Source(Protocol):
    """A collection of images."""

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the images in a fixed order.

        Parameters
        ----------
        scratch : directory for unpacked files.
        left_out : collects the names of files that are left out.

        Raises
        ------
        DatasetError : the source is invalid.
        """


MISSING = -1
"""Value of `Place.size` for a missing file."""


def named(path: str) -> str:
    """Return an image's name from its path or URL, without secrets. The name is the default id.

    ``.`` and ``..`` are removed from paths such as ``./a.png``, because an id must not contain
    these parts.
    """
    name = shown(path)
    if is_url(path) or not {".", ".."} & set(name.split("/")):
        return name
    parts = [part for part in normpath(name).split("/") if part != ".."]
    return "/".join(parts) or name


class Places(Protocol):
    """A folder; paths in a manifest are relative to this folder."""

    def place(self, name: str, origin: str) -> Place:
        """Return the place of the image ``name``: a path relative to the folder, or a URL.

        Parameters
        ----------
        origin : position in the source, for messages.

        Raises
        ------
        DatasetError : the path is outside the folder, or the URL's scheme is unknown.
        """


def places_in(root: Path | str) -> Places:
    """Return the places in a local folder, or in a folder at a URL."""
    return RemotePlaces(str(root)) if is_url(root) else LocalPlaces(Path(root))


def _at_url(url: str, origin: str) -> Place:
    """Return the place of a URL.

    Raises
    ------
    DatasetError : the scheme is not supported.
    """
    try:
        scheme_of(url)
    except DatasetError as error:
        raise DatasetError(f"{origin}: {error}") from error
    return Place(url, None, 0, 0)


class LocalPlaces:
    r"""A local folder of images. The manifest can come from another machine.

    If a path does not exist, other spellings of the path are tried: ``\`` for a slash, another
    case, another Unicode form, spaces around a name, ``%20`` for a space. Such a spelling is used
    only if it matches exactly one file.

    Parameters
    ----------
    root : folder that must contain all images.
    start : folder that paths are relative to; by default ``root``.
    """

    def __init__(self, root: Path, start: Path | None = None) -> None:
        self._root = root.expanduser().resolve()
        self._start = start or root.expanduser()
        self._resolved = lru_cache(maxsize=4096)(os.path.realpath)
        self._listed = lru_cache(maxsize=16)(_names_in)

    def place(self, name: str, origin: str) -> Place:
        """Return the place of ``name``; the file need not exist, see `Places`."""
        if is_url(name):
            return _at_url(name, origin)
        place = self._place(name, origin)
        if place.size != MISSING:
            return place
        for written in dict.fromkeys((name, unquote(name))):
            if (other := self._alike(written)) not in {None, name}:
                return self._place(str(other), origin)
        return place

    def _alike(self, name: str) -> str | None:
        """Return the existing path that differs from ``name`` only in spelling.

        Returns None if there is no such path, or if there are several. Only the folder ``start`` is
        searched.
        """
        parts = PurePosixPath(name.replace("\\", "/")).parts
        found = PurePosixPath()
        for part in parts:
            names = self._listed(self._start / found)
            alike = [part] if part in names.get(_plain(part), ()) else names.get(_plain(part), [])
            if len(alike) != 1:
                return None
            found /= alike[0]
        return found.as_posix()

    def _place(self, name: str, origin: str) -> Place:
        path = self._start / name
        try:
            folder = self._resolved(path.parent)
        except ValueError as error:  # the name has a null character or invalid Unicode
            raise DatasetError(f"{origin} is not a valid file name.") from error
        real = Path(folder, path.name)
        try:
            status = real.lstat()
            if stat.S_ISLNK(status.st_mode):
                real = real.resolve()
                status = real.stat()
        except (OSError, RuntimeError, ValueError):  # circular links; no such file
            status = None
        if not real.is_relative_to(self._root) or path.name == "..":
            raise DatasetError(
                f"{origin} leads to {real}, which is outside {self._root}. If this is intended, "
                "name the folder of all images with --root."
            )
        if status is None or not stat.S_ISREG(status.st_mode):
            return Place(str(real), None, MISSING, 0)
        return Place(str(real), None, status.st_size, status.st_mtime_ns)


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().strip()


def _names_in(folder: Path) -> dict[str, list[str]]:
    """Return the names in a folder, grouped by `_plain`; no names for an unreadable folder."""
    names: dict[str, list[str]] = {}
    try:
        for path in folder.iterdir():
            names.setdefault(_plain(path.name), []).append(path.name)
    except OSError:
        pass
    return names


class RemotePlaces:
    """A folder in a bucket or on the web.

    A manifest from the web is untrusted. So the manifest's URLs must not name a bucket. Otherwise,
    this machine could read the bucket with the owner's credentials.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._schemes = WEB if scheme_of(root) in WEB else None

    def place(self, name: str, origin: str) -> Place:
        """Return the place of ``name``; the file need not exist, see `Places`."""
        if is_url(name):
            place = _at_url(name, origin)
            if self._schemes is not None and scheme_of(name) not in self._schemes:
                raise DatasetError(
                    f"{origin} is in a bucket, but its manifest is on the web. If this is "
                    "intended, copy the manifest to this machine first."
                )
            return place
        path = PurePosixPath(name)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DatasetError(f"{origin} is not a valid file name.") from error
        if path.is_absolute() or ".." in path.parts:
            raise DatasetError(
                f"{origin} leads out of {shown(self._root)}. If this is intended, name the folder "
                "of all images with --root, or write complete URLs."
            )
        return Place(joined(self._root, path.as_posix()), None, 0, 0)


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
