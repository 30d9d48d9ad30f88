"""Parses the address of a place that stores bundles."""

from __future__ import annotations

from pathlib import Path

from index_builder.exchange.bucket import Bucket
from index_builder.exchange.folder import Folder
from index_builder.exchange.hub import Hub
from index_builder.exchange.place import Place
from model_store.errors import TransferError

BUCKETS = ("s3", "gs", "az")

ADDRESSES = (
    "a directory, s3://BUCKET/PREFIX (or gs://, az://), or hf://OWNER/NAME; a pull also "
    "takes hf://OWNER/NAME@REVISION"
)


def place_at(address: str, *, public: bool = False) -> Place:
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
        return Folder(Path(address))
    if scheme in BUCKETS:
        return Bucket(address.rstrip("/"))
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
