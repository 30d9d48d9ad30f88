"""The interface of a place where a bundle lies, or is to lie."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from model_store.bundles.manifest import Manifest

MOST_BYTES = 2**26
"""Read of a manifest or a signature at most: far more than any bundle has."""


class Place(Protocol):
    """A remote location. Bundles become visible there atomically.

    What cannot be reached, read or written is a `TransferError`.
    """

    def read(self, name: str) -> bytes | None:
        """Return a small file of the bundle there; None where there is none of that name."""

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of the bundle there to ``directory / name``; it need not be the right one.

        Parameters
        ----------
        size : its declared bytes; no more are written.
        """

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Copy the bundle in ``directory`` there, and return where it lies then.

        Files that an interrupted copy has left there are not sent again.
        """
