"""Cursors: where a list goes on, bound to the bundle that the list is of.

A cursor is opaque to clients: URL-safe base64 of a few fields and a checksum of them. It holds
nothing secret and opens nothing: whoever made one up could ask for the same with the parameters of
the first page, and every field is checked as those are. The checksum finds damage and guessing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_store.errors import InvalidCursor, OutdatedCursor
from model_store.search import N_CANDIDATES
from service.schemas import SearchOptions, ShareOrigin

_CHECKSUM_BYTES = 12

MAX_LENGTH = 5_000
"""Characters of a cursor; those of the service are shorter, whatever filter they carry. Of any
characters, escaped, it still fits into an address, which servers end at 64 KiB."""

MAX_ITEMS_LENGTH = 1024
"""Characters of a cursor into a list of items, which carries no filter."""


class ItemsCursor(BaseModel):
    """The place in a list of items after which the next page begins: the item at row ``after``.

    The row of an item never changes, even in a live gallery and after the item was deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["items"] = "items"
    bundle: str
    after: int = Field(ge=0, le=2**40)


class SearchCursor(BaseModel):
    """The place in a query's results where the next page begins: after the first ``start``.

    ``version`` is that of the gallery at the first page: later pages show the gallery as it was
    then. ``options.expected_absent`` is the share used for the first page, ``share_origin`` its
    origin.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["search"] = "search"
    bundle: str
    version: int = Field(0, ge=0, le=2**53)
    query_id: str = Field(pattern="^[0-9a-f]{64}$")
    start: int = Field(ge=1, lt=N_CANDIDATES)
    options: SearchOptions
    share_origin: ShareOrigin = "request"


CursorT = TypeVar("CursorT", ItemsCursor, SearchCursor)


def write(cursor: ItemsCursor | SearchCursor) -> str:
    """Serialise for a client."""
    fields = cursor.model_dump_json(exclude_none=True).encode()
    return base64.urlsafe_b64encode(_checksum(fields) + fields).decode().rstrip("=")


def read(text: str, kind: type[CursorT], bundle: str) -> CursorT:
    """Read a cursor that `write` made for a list of this kind and of the served bundle.

    Raises
    ------
    InvalidCursor : the text is anything else.
    OutdatedCursor : the list was one of another bundle.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        checksum, fields = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
        if checksum != _checksum(fields):
            raise InvalidCursor(_NOT_OURS)
        cursor = kind.model_validate_json(fields)
    except (binascii.Error, ValidationError, ValueError):
        raise InvalidCursor(_NOT_OURS) from None
    if cursor.bundle != bundle:
        raise OutdatedCursor(
            f"The cursor is of bundle {cursor.bundle[:12]}, served is {bundle[:12]}: the list may "
            "be another now. Ask for its first page again."
        )
    return cursor


_NOT_OURS = (
    "The cursor received is not one of this list. Send `next_cursor` of the page before as it is, "
    "or ask for the first page again."
)


def _checksum(fields: bytes) -> bytes:
    return hashlib.blake2b(fields, digest_size=_CHECKSUM_BYTES, person=b"vouch cursor").digest()
