"""A bundle, or a directory of bundles, on a local disk or a network share."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from index_builder.exchange.pull import pull
from model_store.bundles.directory import locate
from model_store.bundles.manifest import Manifest
from model_store.errors import TransferError


class Folder:
    """A bundle, or the current bundle of a directory of bundles."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        """Return a file of the bundle."""
        try:
            return (self._bundle / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TransferError(f"{name} in {self._path} cannot be read: {error}.") from error

    def fetch(self, name: str, size: int, directory: Path) -> None:  # noqa: ARG002 - of a disk
        """Copy a file of the bundle."""
        try:
            shutil.copyfile(self._bundle / name, directory / name)
        except OSError as error:
            raise TransferError(f"{name} in {self._path} cannot be copied: {error}.") from error

    def put(self, directory: Path, manifest: Manifest) -> str:  # noqa: ARG002 - is read again
        """Copy a bundle into this directory of bundles."""
        return str(pull(Folder(directory), self._path))

    @cached_property
    def _bundle(self) -> Path:
        """The directory of the bundle. It stays the same if another bundle becomes current."""
        return locate(self._path)
