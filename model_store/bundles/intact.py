"""Checks whether the files of an open bundle have changed since they were verified."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from model_store.bundles.manifest import Manifest, describe_file

HASHED_AGAIN_AFTER_S = 86_400.0
"""Seconds after which an unmodified file is hashed again, to find damage on the disk."""

_Mark = tuple[int, int, int] | None


class BundleFiles:
    """Checks that the files of an open bundle do not change.

    A check without hashing needs only a few system calls. A check hashes each file whose time stamp
    has changed. It also hashes at most one unmodified file: the file that was hashed least
    recently. This file is hashed only if its last hash is older than ``hashed_again_after_s``.

    Parameters
    ----------
    hashed_again_after_s : seconds after which an unmodified file is hashed again.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        hashed_again_after_s: float = HASHED_AGAIN_AFTER_S,
    ) -> None:
        self._directory, self._described = directory, manifest.files
        self._marks = {name: _mark(directory / name) for name in manifest.files}
        self._hashed_at = dict.fromkeys(manifest.files, time.monotonic())
        self._hashed_again_after_s = hashed_again_after_s
        self._hashing = threading.Lock()

    def changed(self) -> str | None:
        """Return the name of a file that differs from the manifest; None if all files agree."""
        for name, known in self._marks.items():
            if (known is None or _mark(self._directory / name) != known) and not self._whole(name):
                return name
        if not self._hashed_at or not self._hashing.acquire(blocking=False):
            return None  # another check is still hashing a large file
        try:
            name = min(self._hashed_at, key=self._hashed_at.__getitem__)
            due = time.monotonic() - self._hashed_at[name] >= self._hashed_again_after_s
            return name if due and not self._whole(name) else None
        finally:
            self._hashing.release()

    def _whole(self, name: str) -> bool:
        """Hash a file, and return whether it matches the manifest."""
        path = self._directory / name
        mark = _mark(path)
        try:
            same = describe_file(path) == self._described[name]
        except OSError:
            same = False
        self._marks[name] = mark if same else None
        self._hashed_at[name] = time.monotonic()
        return same


def _mark(path: Path) -> _Mark:
    """Return a value that changes when a file is written or replaced; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
