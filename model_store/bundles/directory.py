"""A directory of bundles, and its pointers `CURRENT` and `PREVIOUS`."""

from __future__ import annotations

from pathlib import Path

from model_store.bundles.manifest import MANIFEST_FILE
from model_store.errors import BundleNotFound
from model_store.files import replacing

CURRENT_FILE = "CURRENT"
PREVIOUS_FILE = "PREVIOUS"


def activate(root: Path, bundle_id: str) -> None:
    """Point ``root/CURRENT`` at a bundle, atomically; ``root/PREVIOUS`` names the one before.

    A running service that serves ``root`` changes over to it by itself.
    """
    before = current_id(root)
    if before == bundle_id:
        return
    if before is not None:
        _write_pointer(root / PREVIOUS_FILE, before)
    _write_pointer(root / CURRENT_FILE, bundle_id)


def current_id(root: Path) -> str | None:
    """The bundle that ``root/CURRENT`` names; None where there is no such file."""
    return _read_pointer(root / CURRENT_FILE)


def previous_id(root: Path) -> str | None:
    """The bundle that was current before; None where there was none."""
    return _read_pointer(root / PREVIOUS_FILE)


def bundle_ids(root: Path) -> list[str]:
    """The bundles in ``root``, oldest first."""
    found = [path.parent for path in root.glob(f"*/{MANIFEST_FILE}")]
    complete = [path for path in found if not path.name.startswith(".")]
    return [path.name for path in sorted(complete, key=lambda path: path.stat().st_mtime)]


def locate(path: Path) -> Path:
    """The bundle at ``path``: the directory itself, or the one its `CURRENT` names.

    Raises
    ------
    BundleNotFound : neither is there.
    """
    if (path / MANIFEST_FILE).is_file():
        return path
    named = current_id(path)
    if named is not None:
        if (path / named / MANIFEST_FILE).is_file():
            return path / named
        raise BundleNotFound(f"{path / CURRENT_FILE} names {named!r}, but there is no such bundle.")
    raise BundleNotFound(
        f"No bundle at {path}: wanted a directory with {MANIFEST_FILE}, or one whose "
        f"{CURRENT_FILE} names a bundle. Build one with `vouch-build all`."
    )


def _read_pointer(pointer: Path) -> str | None:
    try:
        return pointer.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None


def _write_pointer(pointer: Path, bundle_id: str) -> None:
    with replacing(pointer) as staged:
        staged.write_text(bundle_id + "\n", encoding="ascii")
