"""The interface of a place that stores a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from model_store.bundles.manifest import Manifest

MOST_BYTES = 2**26
"""Maximum size of a manifest or signature in bytes. Real files are much smaller."""


class BundlePlace(Protocol):
    """A place that stores a bundle. A new bundle becomes visible atomically.

    All methods raise `TransferError` if the place cannot be reached, read or written.
    """

    def read(self, name: str) -> bytes | None:
        """Return a small file of the bundle; None if it does not exist."""

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of the bundle to ``directory / name``. The caller must verify the file.

        Parameters
        ----------
        size : size in the manifest, in bytes. At most this number of bytes is written.
        """

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Copy the bundle in ``directory`` to this place, and return its new address.

        Files that an interrupted copy has sent are not sent again.
        """
