"""The folder that images must lie in, and the places of files inside it."""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

from index_builder.indexing.blocks import Place
from model_store.errors import DatasetError

MISSING = -1
"""The size of what is not there."""


class Boundary:
    """The folder that images must lie in: a manifest may come from elsewhere than the images."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().resolve()
        self._resolved = lru_cache(maxsize=4096)(os.path.realpath)

    def place(self, path: Path, origin: str) -> Place:
        """The file at ``path``, which need not be there.

        Raises
        ------
        DatasetError : it is outside the root, or a link leads out of it.
        """
        folder = self._resolved(path.parent)
        real = Path(folder, path.name)
        try:
            status = real.lstat()
            if stat.S_ISLNK(status.st_mode):
                real = real.resolve()
                status = real.stat()
        except (OSError, RuntimeError):  # RuntimeError: links in a circle
            status = None
        if not real.is_relative_to(self._root) or path.name == "..":
            raise DatasetError(
                f"{origin} leads to {real}, which is outside {self._root}. Where that is meant, "
                "name the folder that all images lie in with --root."
            )
        if status is None or not stat.S_ISREG(status.st_mode):
            return Place(str(real), None, MISSING, 0)
        return Place(str(real), None, status.st_size, status.st_mtime_ns)
