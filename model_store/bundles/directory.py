"""A directory of bundles, and its pointers `CURRENT` and `PREVIOUS`."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from model_store.bundles.manifest import ID_LENGTH, MANIFEST_FILE
from model_store.errors import BundleNotFound, GallerySuperseded, PointerUnreadable
from model_store.files import lock_between_processes, replacing

ACTIVATION_LOCK = ".activating"
PUBLISH_LOCK = ".publishing"
"""Lock file of a running publish; it contains the id of the finished bundle."""

COMPACTION_LOCK = ".compacting"
"""Lock file of a running compaction; it contains the id of the prepared bundle."""

RESTORING = ".restoring-"
"""Prefix of a restore's temporary directory if the directory of bundles exists already."""

CURRENT_FILE = "CURRENT"
PREVIOUS_FILE = "PREVIOUS"

GALLERY_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""Pattern of gallery names; each is valid as part of a URL and as a file name."""

KEPT_BUNDLES = 3
"""Number of bundles kept by default, including the current one."""

_MOST_POINTER_BYTES = 1024
"""Maximum bytes to read from a pointer: an id, and white space that an editor may have added."""

_BUNDLE_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


def is_bundle_id(name: object) -> bool:
    """Return whether ``name`` has the form of a bundle id."""
    return isinstance(name, str) and _BUNDLE_ID.fullmatch(name) is not None


def bundle_directory(root: Path, bundle_id: str) -> Path:
    """Return the path of a bundle in ``root``; the bundle need not exist.

    Use only this function to convert an id to a path. Ids come from requests, archives and
    pointers, and an unchecked id could lead to any path.

    Raises
    ------
    BundleNotFound : ``bundle_id`` does not have the form of an id.
    """
    return root / _checked(bundle_id)


def _checked(bundle_id: str) -> str:
    """Return ``bundle_id`` if it has the form of an id; raise `BundleNotFound` otherwise."""
    if not is_bundle_id(bundle_id):
        raise BundleNotFound(
            f"There is no bundle {str(bundle_id)[:80]!r}: the id of a bundle has {ID_LENGTH} "
            "hexadecimal digits. `vouch-build bundles` lists the existing bundles."
        )
    return bundle_id


def activate(root: Path, bundle_id: str, instead_of: str | None = None) -> None:
    """Set ``root/CURRENT`` to a bundle atomically, and ``root/PREVIOUS`` to the one before.

    A lock excludes other processes. A running service that serves ``root`` switches to it
    automatically.

    Parameters
    ----------
    instead_of : the bundle that must be the current one; None for any.

    Raises
    ------
    BundleNotFound : ``bundle_id`` does not have the form of an id.
    GallerySuperseded : ``instead_of`` is not the current bundle; nothing was changed.
    """
    bundle_id = _checked(bundle_id)
    with lock_between_processes(root / ACTIVATION_LOCK):
        if instead_of is not None:
            require_current(root, instead_of)
        try:
            before = current_id(root)
        except PointerUnreadable:  # this call repairs it
            before = None
        if before == bundle_id:
            return
        if before is not None:
            _write_pointer(root / PREVIOUS_FILE, before)
        _write_pointer(root / CURRENT_FILE, bundle_id)


def require_current(root: Path, bundle_id: str) -> None:
    """Raise `GallerySuperseded` unless the bundle is the current one.

    A writer calls this inside its transaction, and a compaction sets `CURRENT` inside another one.
    So no change is written to a log that is no longer read.

    Raises
    ------
    GallerySuperseded
    """
    named = current_id(root)
    if named != bundle_id:
        raise GallerySuperseded(
            f"The bundle {bundle_id} takes no more changes: CURRENT names {named}. Nothing was "
            "changed; send the request again when that bundle is served."
        )


def current_id(root: Path) -> str | None:
    """Return the bundle in ``root/CURRENT``; None without such a file.

    Raises
    ------
    PointerUnreadable : the file names no bundle, or cannot be read.
    """
    return _read_pointer(root / CURRENT_FILE)


def previous_id(root: Path) -> str | None:
    """Return the previous current bundle; None if there was none.

    Raises
    ------
    PointerUnreadable : see `current_id`.
    """
    return _read_pointer(root / PREVIOUS_FILE)


def bundle_ids(root: Path) -> list[str]:
    """Return the ids of the bundles in ``root``, oldest first."""
    made_at: dict[str, float] = {}
    for manifest in root.glob(f"*/{MANIFEST_FILE}"):
        directory = manifest.parent
        if is_bundle_id(directory.name):
            with suppress(FileNotFoundError):  # another process may remove it
                made_at[directory.name] = directory.stat().st_mtime
    return sorted(made_at, key=made_at.__getitem__)


def locate(path: Path) -> Path:
    """Return the bundle at ``path``: ``path`` itself, or the bundle in its `CURRENT`.

    Raises
    ------
    BundleNotFound : neither exists.
    PointerUnreadable : see `current_id`.
    """
    if (path / MANIFEST_FILE).is_file():
        return path
    named = current_id(path)
    if named is not None:
        directory = bundle_directory(path, named)
        if (directory / MANIFEST_FILE).is_file():
            return directory
        raise BundleNotFound(f"{path / CURRENT_FILE} names {named!r}, but there is no such bundle.")
    raise BundleNotFound(
        f"No bundle at {path}: wanted a directory with {MANIFEST_FILE}, or one whose "
        f"{CURRENT_FILE} names a bundle. Build one with `vouch-build all`."
    )


def _read_pointer(pointer: Path) -> str | None:
    try:
        with pointer.open("rb") as file:
            content = file.read(_MOST_POINTER_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PointerUnreadable(
            f"{pointer.name} cannot be read ({error.strerror}). Check the directory of bundles."
        ) from error
    named = content.decode("ascii", errors="replace").strip()
    if not is_bundle_id(named):
        raise PointerUnreadable(
            f"{pointer.name} names no bundle: wanted the {ID_LENGTH} hexadecimal digits of an id, "
            f"found {len(content)} bytes of text. List the bundles with `vouch-build doctor`, "
            "and write the file again with `vouch-build activate`."
        )
    return named


def _write_pointer(pointer: Path, bundle_id: str) -> None:
    with replacing(pointer) as staged:
        staged.write_text(bundle_id + "\n", encoding="ascii")
