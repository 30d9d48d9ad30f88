"""Parses the address of a place that stores bundles; defines the place on a local disk."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from index_builder.exchange.bucket import BundleBucket
from index_builder.exchange.hub import Hub
from index_builder.exchange.pull import BundlePlace, pull
from model_store.bundles.directory import locate
from model_store.bundles.manifest import Manifest
from model_store.errors import TransferError


class BundleFolder:
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
        return str(pull(BundleFolder(directory), self._path))

    @cached_property
    def _bundle(self) -> Path:
        """The directory of the bundle. It stays the same if another bundle becomes current."""
        return locate(self._path)


BUCKETS = ("s3", "gs", "az")

ADDRESSES = (
    "a directory, s3://BUCKET/PREFIX (or gs://, az://), or hf://OWNER/NAME; a pull also "
    "takes hf://OWNER/NAME@REVISION"
)


def place_at(address: str, *, public: bool = False) -> BundlePlace:
    """Return the place at ``address``.

    Parameters
    ----------
    public : whether a repository that is created on the Hub is public.

    Raises
    ------
    TransferError : the scheme is unknown, or the extra for the scheme is not installed.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return BundleFolder(Path(address))
    if scheme in BUCKETS:
        return BundleBucket(address.rstrip("/"))
    if scheme == "hf":
        repository, _, revision = rest.partition("@")
        return Hub(repository.strip("/"), revision or None, public=public)
    raise TransferError(f"{scheme}:// is not supported; wanted {ADDRESSES}.")


def last_part(address: str) -> str:
    """Return the last name in an address: ``digits`` for ``hf://owner/digits@main``."""
    if address.startswith("hf://"):
        address = address.partition("@")[0]
    name = Path(address.partition("://")[2] or Path(address).resolve()).name
    if not name:
        raise TransferError(f"{address!r} is not the address of a bundle; wanted {ADDRESSES}.")
    return name
