"""Retention: old bundles of a directory are removed, with their changes.

Whoever has a bundle open holds a lock of it: it is never taken away from under him.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Self

from model_store.bundles.changes import changes_path
from model_store.bundles.directory import (
    KEPT_BUNDLES,
    bundle_directory,
    bundle_ids,
    current_id,
    is_bundle_id,
    previous_id,
)
from model_store.bundles.manifest import MANIFEST_FILE
from model_store.errors import BundleNotFound, PointerUnreadable


class Hold:
    """A bundle that is in use, until `close`, or until nobody knows of this any more.

    Raises
    ------
    BundleNotFound : it is not there, or is just being taken away.
    """

    def __init__(self, directory: Path, *, alone: bool = False) -> None:
        self._descriptor = -1
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            self._descriptor = os.open(directory / MANIFEST_FILE, os.O_RDONLY)
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError) as error:
            self.close()
            raise BundleNotFound(f"The bundle {directory.name} is not there, or in use.") from error
        except OSError:  # a file system without locks: nothing is removed there
            self.close()
            if alone:
                raise
        if not (directory / MANIFEST_FILE).exists():  # it was taken away just before
            self.close()
            raise BundleNotFound(f"The bundle {directory.name} is not there any more.")

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def prune(
    root: Path, keep: int = KEPT_BUNDLES, *, compacted: bool = False, dry_run: bool = False
) -> list[str]:
    """Remove all bundles but the newest ``keep``, with their changes; returns ids, oldest first.

    Never the current one, the one before it, to which a rollback goes, nor one that is open.

    Parameters
    ----------
    compacted : remove those alone that the current one was compacted from; what else lies there,
        somebody may have put there to be activated.
    dry_run : only say which they are.
    """
    try:
        current, previous = current_id(root), previous_id(root)
    except PointerUnreadable:
        return []  # nobody knows which is the current one
    if current is None:
        return []
    newest_first = bundle_ids(root)[::-1]
    for left in [] if dry_run else root.glob(".*.removed"):  # by one who was interrupted
        bundle_id = left.name.split(".")[1]
        if is_bundle_id(bundle_id) and bundle_id not in newest_first:
            _finish(root, bundle_id)
    wanted = _ancestors(root, current) if compacted else newest_first
    kept = {current, previous, *[one for one in newest_first if one != current][: keep - 1]}
    removed = []
    for one in reversed([one for one in wanted if one not in kept]):
        if dry_run or _remove(root, one):
            removed.append(one)
        elif compacted:  # or those before it would not be known again as what led here
            break
    return removed


def _ancestors(root: Path, bundle_id: str) -> list[str]:
    """The bundles that are there of those that one was compacted from, newest first."""
    found = [bundle_id]
    while True:
        try:
            manifest = json.loads((bundle_directory(root, found[-1]) / MANIFEST_FILE).read_bytes())
            before = manifest["gallery"]["compacted_from"]
            there = (bundle_directory(root, before) / MANIFEST_FILE).exists()
        except (OSError, ValueError, KeyError, TypeError, BundleNotFound):
            return found[1:]
        if not there or before in found:
            return found[1:]
        found.append(before)


def _remove(root: Path, bundle_id: str) -> bool:
    """Remove a bundle and its changes, unless somebody has it open, or has just activated it."""
    directory = bundle_directory(root, bundle_id)
    gone = root / f".{bundle_id}.removed"
    try:
        with Hold(directory, alone=True):
            if bundle_id in {current_id(root), previous_id(root)}:  # since these were looked at
                return False
            shutil.rmtree(gone, ignore_errors=True)  # of the same content, removed before
            directory.rename(gone)
    except (BundleNotFound, PointerUnreadable, OSError):
        return False
    _finish(root, bundle_id)
    return True


def _finish(root: Path, bundle_id: str) -> None:
    """Remove what is left of a bundle without a name; last its files, which tell of it."""
    log = changes_path(root, bundle_id)
    for end in ("", "-wal", "-shm", ".high"):
        with suppress(OSError):
            log.with_name(log.name + end).unlink(missing_ok=True)
    shutil.rmtree(root / f".{bundle_id}.removed", ignore_errors=True)
