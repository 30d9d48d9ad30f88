"""A check that a bundle's files are still those that were verified when it was opened."""

from __future__ import annotations

from pathlib import Path

from model_store.bundles.manifest import Manifest, describe_file

_Mark = tuple[int, int, int] | None


class BundleFiles:
    """The files of an open bundle, which nobody should touch.

    Looking at them costs a few system calls; one that was touched is hashed again.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self._wanted = directory, manifest.files
        self._marks = {name: _mark(directory / name) for name in manifest.files}

    def changed(self) -> str | None:
        """Return the name of a file that is not what the manifest says any more; None if none."""
        for name, wanted in self._wanted.items():
            path, known = self._directory / name, self._marks[name]
            mark = _mark(path)
            if mark == known and mark is not None:
                continue
            try:
                same = describe_file(path) == wanted
            except OSError:
                same = False
            if not same:
                return name
            self._marks[name] = mark
        return None


def _mark(path: Path) -> _Mark:
    """Return what is another once the file was written to or exchanged; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
