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
"""Held by the current publish; names the bundle that it has finished."""

COMPACTION_LOCK = ".compacting"
"""Held by the current compaction; names the bundle that it has prepared."""

RESTORING = ".restoring-"
"""Prefix of the directory that a restore unpacks to where the directory of bundles exists."""

CURRENT_FILE = "CURRENT"
PREVIOUS_FILE = "PREVIOUS"

GALLERY_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""The names that a gallery can have: each can be a part of an address, and a file's name."""

KEPT_BUNDLES = 3
"""Number of bundles kept by default, including the current one."""

_MOST_POINTER_BYTES = 1024
"""Read of a pointer at most: an id, and whatever an editor put around it."""

_BUNDLE_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


def is_bundle_id(name: object) -> bool:
    """Return whether ``name`` is what a bundle can be called."""
    return isinstance(name, str) and _BUNDLE_ID.fullmatch(name) is not None


def bundle_directory(root: Path, bundle_id: str) -> Path:
    """Return where the bundle of that id lies in ``root``, whether it is there or not.

    The only way from an id to a path: ids come from requests, archives and pointers, and an
    unchecked one could lead anywhere.

    Raises
    ------
    BundleNotFound : no bundle can be called that.
    """
    return root / _checked(bundle_id)


def _checked(bundle_id: str) -> str:
    """Return ``bundle_id``, if it is one."""
    if not is_bundle_id(bundle_id):
        raise BundleNotFound(
            f"There is no bundle {str(bundle_id)[:80]!r}: the id of a bundle has {ID_LENGTH} "
            "hexadecimal digits. `vouch-build bundles` lists those there are."
        )
    return bundle_id


def activate(root: Path, bundle_id: str, instead_of: str | None = None) -> None:
    """Point ``root/CURRENT`` at a bundle, atomically; ``root/PREVIOUS`` names the one before.

    One process at a time does it. A running service that serves ``root`` switches to it
    automatically.

    Parameters
    ----------
    instead_of : the bundle that must be the current one; None for any.

    Raises
    ------
    BundleNotFound : no bundle can be called that.
    GallerySuperseded : another one is current than ``instead_of``; nothing was changed.
    """
    bundle_id = _checked(bundle_id)
    with lock_between_processes(root / ACTIVATION_LOCK):
        if instead_of is not None:
            require_current(root, instead_of)
        try:
            before = current_id(root)
        except PointerUnreadable:  # this is how it is repaired
            before = None
        if before == bundle_id:
            return
        if before is not None:
            _write_pointer(root / PREVIOUS_FILE, before)
        _write_pointer(root / CURRENT_FILE, bundle_id)


def require_current(root: Path, bundle_id: str) -> None:
    """Let only the current bundle be written to.

    Asked in the turn of a writer, and a compaction sets `CURRENT` in a separate transaction: so no
    change is kept where it would never be looked for.

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
    """Return the bundle that ``root/CURRENT`` names; None where there is no such file.

    Raises
    ------
    PointerUnreadable : it names no bundle, or cannot be read.
    """
    return _read_pointer(root / CURRENT_FILE)


def previous_id(root: Path) -> str | None:
    """Return the bundle that was current before; None where there was none.

    Raises
    ------
    PointerUnreadable : see `current_id`.
    """
    return _read_pointer(root / PREVIOUS_FILE)


def bundle_ids(root: Path) -> list[str]:
    """The bundles in ``root``, oldest first."""
    made_at: dict[str, float] = {}
    for manifest in root.glob(f"*/{MANIFEST_FILE}"):
        directory = manifest.parent
        if is_bundle_id(directory.name):
            with suppress(FileNotFoundError):  # another process has just removed it
                made_at[directory.name] = directory.stat().st_mtime
    return sorted(made_at, key=made_at.__getitem__)


def locate(path: Path) -> Path:
    """The bundle at ``path``: the directory itself, or the one its `CURRENT` names.

    Raises
    ------
    BundleNotFound : neither is there.
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
            f"{pointer.name} cannot be read ({error.strerror}). Its operator looks at the "
            "directory of bundles."
        ) from error
    named = content.decode("ascii", errors="replace").strip()
    if not is_bundle_id(named):
        raise PointerUnreadable(
            f"{pointer.name} names no bundle: wanted the {ID_LENGTH} hexadecimal digits of an id, "
            f"it holds {len(content)} bytes of something else. Its operator lets `vouch-build "
            "doctor` list the bundles, and `vouch-build activate` write it anew."
        )
    return named


def _write_pointer(pointer: Path, bundle_id: str) -> None:
    with replacing(pointer) as staged:
        staged.write_text(bundle_id + "\n", encoding="ascii")
