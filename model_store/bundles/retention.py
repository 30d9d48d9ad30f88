"""Retention: removes old bundles, their logs, and the files of crashed processes.

A process locks every bundle that it has opened. A locked bundle is never removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from filelock import Timeout

from model_store.bundles.changes import CHANGES_FOLDER, changes_path, n_changes_without
from model_store.bundles.directory import (
    ACTIVATION_LOCK,
    COMPACTION_LOCK,
    KEPT_BUNDLES,
    PUBLISH_LOCK,
    RESTORING,
    bundle_directory,
    bundle_ids,
    current_id,
    is_bundle_id,
    previous_id,
)
from model_store.bundles.manifest import ID_LENGTH, MANIFEST_FILE, read_manifest
from model_store.bundles.signatures import SECRET_FILE
from model_store.errors import BundleNotFound, PointerUnreadable, VouchError
from model_store.files import PARTIAL, abandoned_folders, flush, lock_between_processes
from model_store.gallery.live.log import UNFINISHED, remove_unfinished

_OF_A_LOG = ("", "-wal", "-shm", ".high")
"""Suffixes of a log's files: the log, SQLite's journals, and the file of `HighWater`."""

_ID = "[0-9a-f]" * ID_LENGTH
_UNFINISHED = {
    PUBLISH_LOCK: (f".{_ID}{PARTIAL}", f".{_ID}.damaged"),
    COMPACTION_LOCK: (
        f".{_ID}.compacting",
        f"{CHANGES_FOLDER}/.{_ID}.sqlite{PARTIAL}*",
        f"{CHANGES_FOLDER}/.{_ID}.sqlite{UNFINISHED}",
    ),
    ACTIVATION_LOCK: (f".[A-Z]*{PARTIAL}", f".{SECRET_FILE}{PARTIAL}"),
}
"""For each lock file, patterns of file names. The holder of the lock writes temporary files with
these names."""


class Hold:
    """A lock on an open bundle, until `close` or garbage collection of this object.

    Raises
    ------
    BundleNotFound : the bundle does not exist, or another process is removing it. With ``alone``,
        this error is also raised if another process has opened the bundle.
    """

    def __init__(self, directory: Path, *, alone: bool = False) -> None:
        self._descriptor = -1
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            self._descriptor = os.open(directory / MANIFEST_FILE, os.O_RDONLY)
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError) as error:
            self.close()
            raise BundleNotFound(f"No bundle {directory.name}, or it is in use.") from error
        except OSError:  # the file system has no locks, so nothing is removed
            self.close()
            if alone:
                raise
        if not (directory / MANIFEST_FILE).exists():  # removed before the lock was taken
            self.close()
            raise BundleNotFound(f"The bundle {directory.name} no longer exists.")

    def close(self) -> None:
        """Release the lock."""
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
    """Remove all except the ``keep`` newest bundles; return the removed ids, oldest first.

    The logs of the removed bundles are removed too. The current bundle, the previous bundle (for a
    rollback) and open bundles are never removed. Temporary files of killed processes are also
    removed.

    Parameters
    ----------
    compacted : True removes only bundles that have a log. A bundle has a log if it was changed, or
        if a compaction made it. A bundle without a log may be waiting for activation. Among the
        ``keep`` bundles, those come first whose changes no other bundle has: an operator who went
        back to an older bundle can return to them.
    dry_run : True only returns the ids, and removes nothing.
    """
    try:
        current, previous = current_id(root), previous_id(root)
    except PointerUnreadable:
        return []  # the current bundle is unknown
    if current is None:
        return []
    if not dry_run:
        remove_leftovers(root)
    newest_first = bundle_ids(root)[::-1]
    pointed_at = {current, previous}.intersection(newest_first)
    others = [one for one in newest_first if one not in pointed_at]
    n_others = max(keep - len(pointed_at), 0)
    if compacted and 0 < n_others < len(others):
        others.sort(key=lambda one: not _is_only_copy(root, one, newest_first))
    kept = pointed_at.union(others[:n_others])
    removed = []
    for one in reversed(newest_first):
        if one in kept or (compacted and not changes_path(root, one).exists()):
            continue
        if dry_run or _remove(root, one):
            removed.append(one)
    return removed


def _is_only_copy(root: Path, bundle_id: str, ids: Iterable[str]) -> bool:
    """Return whether no other bundle of ``ids`` was compacted from this bundle with its changes."""
    if not changes_path(root, bundle_id).exists():
        return False
    directory = bundle_directory(root, bundle_id)
    for other in (bundle_directory(root, one) for one in ids if one != bundle_id):
        with suppress(VouchError):  # a damaged bundle is no copy
            is_next = read_manifest(other).gallery.get("compacted_from") == bundle_id
            if is_next and not n_changes_without(root, directory, other):
                return False
    return True


def remove_leftovers(root: Path) -> None:
    """Remove the temporary files of killed processes from a directory of bundles.

    The files of a running publish, compaction or activation are kept, because the process holds a
    lock. Errors during the removal of a file are ignored.
    """
    there = bundle_ids(root)
    for left in root.glob(".*.removed"):
        bundle_id = left.name.split(".")[1]
        if bundle_id in there:  # the bundle was published again
            shutil.rmtree(left, ignore_errors=True)
        elif is_bundle_id(bundle_id):
            _finish(root, bundle_id)
    for left in abandoned_folders(root, RESTORING):
        shutil.rmtree(left, ignore_errors=True)
    for lock in _UNFINISHED:
        # Take the lock only if there are files: the lock would block the start of a compaction.
        if _unfinished(root, lock) or _noted(root, lock):
            with suppress(Timeout, OSError), lock_between_processes(root / lock).acquire(timeout=0):
                remove_left_under(root, lock)


def note(lock: Path, bundle_id: str) -> None:
    """Write the id of a bundle into a lock file.

    If the holder of the lock is killed, the bundle with this id is removed later. If ``bundle_id``
    is empty, no bundle is removed.
    """
    lock.write_text(bundle_id, encoding="ascii")
    if bundle_id:
        flush(lock)


def remove_left_under(root: Path, lock: str) -> None:
    """Remove the files that killed holders of a lock have left. The caller must hold this lock."""
    for path in _unfinished(root, lock):
        if path.name.endswith(UNFINISHED):
            remove_unfinished(path.parent)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    _remove_noted(root, lock)


def _unfinished(root: Path, lock: str) -> list[Path]:
    return [path for pattern in _UNFINISHED[lock] for path in root.glob(pattern)]


def _noted(root: Path, lock: str) -> str | None:
    """Return the bundle id in a lock file; None if the file has no id."""
    try:
        noted = (root / lock).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return noted if is_bundle_id(noted) else None


def _remove_noted(root: Path, lock: str) -> None:
    """Remove the bundle whose id is in a lock file, if the bundle has never been current."""
    noted = _noted(root, lock)
    if noted is None:
        return
    try:
        is_named = noted in {current_id(root), previous_id(root)}
    except PointerUnreadable:
        return
    # If a compaction made the bundle current, the bundle has a log, which may be empty.
    if not is_named and not changes_path(root, noted).exists():
        directory = bundle_directory(root, noted)
        if (directory / MANIFEST_FILE).exists() and not _remove(root, noted):
            return  # a process has opened the bundle
        shutil.rmtree(directory, ignore_errors=True)
    note(root / lock, "")


def _remove(root: Path, bundle_id: str) -> bool:
    """Remove a bundle and its log, unless the bundle is open or current."""
    directory = bundle_directory(root, bundle_id)
    gone = root / f".{bundle_id}.removed"
    try:
        with Hold(directory, alone=True):
            # The pointers may have changed since `prune` read them.
            if bundle_id in {current_id(root), previous_id(root)}:
                return False
            shutil.rmtree(gone, ignore_errors=True)  # remains of an earlier removal
            directory.rename(gone)
    except (BundleNotFound, PointerUnreadable, OSError):
        return False
    _finish(root, bundle_id)
    return True


def _finish(root: Path, bundle_id: str) -> None:
    """Remove the log of a renamed bundle, and then the bundle's files.

    If the process is killed, the renamed files remain, and a later call of `remove_leftovers`
    removes them.
    """
    with suppress(OSError):
        remove_log(changes_path(root, bundle_id))
    shutil.rmtree(root / f".{bundle_id}.removed", ignore_errors=True)


def remove_log(path: Path) -> None:
    """Remove an unused log, its journals and its `HighWater` file."""
    for ending in _OF_A_LOG:
        path.with_name(path.name + ending).unlink(missing_ok=True)
