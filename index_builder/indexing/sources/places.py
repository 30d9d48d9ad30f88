"""The folder that images must lie in, here or elsewhere, and the places of files in it."""

from __future__ import annotations

import os
import stat
import unicodedata
from functools import lru_cache
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Protocol
from urllib.parse import unquote

from index_builder.indexing.blocks import Place
from index_builder.storage import is_url, shown
from index_builder.storage.urls import WEB, joined, scheme_of
from model_store.errors import DatasetError

MISSING = -1
"""The size of a missing file."""


def named(path: str) -> str:
    """Return the name of an image by its path, which is its id unless it has one: without secrets.

    Steps to the folder itself and out of it are left out, as in ``./a.png``: no id has them.
    """
    name = shown(path)
    if is_url(path) or not {".", ".."} & set(name.split("/")):
        return name
    parts = [part for part in normpath(name).split("/") if part != ".."]
    return "/".join(parts) or name


class Places(Protocol):
    """The folder that a manifest's paths start from, and the files in it."""

    def place(self, name: str, origin: str) -> Place:
        """The image called ``name``: a path from here, or a URL.

        Parameters
        ----------
        origin : where it is named, for people.

        Raises
        ------
        DatasetError : it is outside, or of a kind that cannot be read.
        """


def places_in(root: Path | str) -> Places:
    """Return the files of a folder on this machine, or of one at a URL."""
    return RemotePlaces(str(root)) if is_url(root) else LocalPlaces(Path(root))


class LocalPlaces:
    r"""A folder on this machine: a manifest may come from elsewhere than the images.

    A path that is not there is looked for as another system may have written it: with ``\``, in
    another case, in another Unicode form, with spaces around a name, with ``%20`` in place of a
    space. It is found if one file is called so.

    Parameters
    ----------
    root : what no path leads out of.
    start : what paths start from; ``root`` where None.
    """

    def __init__(self, root: Path, start: Path | None = None) -> None:
        self._root = root.expanduser().resolve()
        self._start = start or root.expanduser()
        self._resolved = lru_cache(maxsize=4096)(os.path.realpath)
        self._listed = lru_cache(maxsize=16)(_names_in)

    def place(self, name: str, origin: str) -> Place:
        """The file called ``name``, which need not be there, or the URL; see `Places`."""
        if is_url(name):
            scheme_of(name)
            return Place(name, None, 0, 0)
        place = self._place(name, origin)
        if place.size != MISSING:
            return place
        for written in dict.fromkeys((name, unquote(name))):
            if (other := self._alike(written)) not in {None, name}:
                return self._place(str(other), origin)
        return place

    def _alike(self, name: str) -> str | None:
        """Return the only path that differs from ``name`` as systems do; None where there is none.

        It is looked for in the folder that paths start from, and never above.
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
        except ValueError as error:  # a null character, or letters that are no Unicode
            raise DatasetError(f"{origin} is not a name that a file can have.") from error
        real = Path(folder, path.name)
        try:
            status = real.lstat()
            if stat.S_ISLNK(status.st_mode):
                real = real.resolve()
                status = real.stat()
        except (OSError, RuntimeError, ValueError):  # links in a circle; no file is called so
            status = None
        if not real.is_relative_to(self._root) or path.name == "..":
            raise DatasetError(
                f"{origin} leads to {real}, which is outside {self._root}. Where that is meant, "
                "name the folder that all images lie in with --root."
            )
        if status is None or not stat.S_ISREG(status.st_mode):
            return Place(str(real), None, MISSING, 0)
        return Place(str(real), None, status.st_size, status.st_mtime_ns)


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().strip()


def _names_in(folder: Path) -> dict[str, list[str]]:
    """Return the names in a folder, by `_plain` of each; none of a folder that cannot be read."""
    names: dict[str, list[str]] = {}
    try:
        for path in folder.iterdir():
            names.setdefault(_plain(path.name), []).append(path.name)
    except OSError:
        pass
    return names


class RemotePlaces:
    """A folder in a bucket or on the web.

    A manifest from the web may be anybody's: it names nothing that the owner's credentials open.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._schemes = WEB if scheme_of(root) in WEB else None

    def place(self, name: str, origin: str) -> Place:
        """The image called ``name``, which need not be there; see `Places`."""
        if is_url(name):
            if self._schemes is not None and scheme_of(name) not in self._schemes:
                raise DatasetError(
                    f"{origin} leads from the web into a bucket. Where that is meant, copy the "
                    "manifest to this machine first."
                )
            scheme_of(name)
            return Place(name, None, 0, 0)
        path = PurePosixPath(name)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DatasetError(f"{origin} is not a name that a file can have.") from error
        if path.is_absolute() or ".." in path.parts:
            raise DatasetError(
                f"{origin} leads out of {shown(self._root)}. Where that is meant, name the folder "
                "that all images lie in with --root, or write whole URLs."
            )
        return Place(joined(self._root, path.as_posix()), None, 0, 0)
