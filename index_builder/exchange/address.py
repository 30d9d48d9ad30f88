"""The place that a text names."""

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
    """Return the place that ``address`` names.

    Parameters
    ----------
    public : whether a repository that is made on the Hub can be seen by all.

    Raises
    ------
    TransferError : no such kind of place, or the extra that it needs is not installed.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Folder(Path(address))
    if scheme in BUCKETS:
        return Bucket(address.rstrip("/"))
    if scheme == "hf":
        repository, _, revision = rest.partition("@")
        return Hub(repository.strip("/"), revision or None, public=public)
    raise TransferError(f"No bundles are kept at {scheme}://; wanted {ADDRESSES}.")


def last_part(address: str) -> str:
    """Return the last name in an address, such as ``digits`` of ``hf://owner/digits@main``."""
    if address.startswith("hf://"):
        address = address.partition("@")[0]
    name = Path(address.partition("://")[2] or Path(address).resolve()).name
    if not name:
        raise TransferError(f"{address!r} names nothing that can be pulled; wanted {ADDRESSES}.")
    return name
