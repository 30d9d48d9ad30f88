"""Cursors: the position in a list, bound to the bundle of the list.

A cursor is opaque to clients: URL-safe base64 of a few fields and a signature of them (HMAC). A
cursor into results names an earlier state of the gallery, which only the service may choose, and it
expires. It holds nothing secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_store.errors import InvalidCursor, OutdatedCursor
from model_store.search import N_CANDIDATES
from service.schemas import SearchOptions, ShareOrigin

_SIGNATURE_BYTES = 16

LIFE_S = 3600
"""Lifetime of a cursor in seconds; clients that read a list ask for the next page sooner."""

MAX_LENGTH = 5_000
"""Maximum characters of a cursor; the service's own cursors are shorter, with any filter. A cursor
of this length fits into an address even if it is escaped: servers limit addresses to 64 KiB."""

MAX_ITEMS_LENGTH = 1024
"""Maximum characters of a cursor into a list of items, which contains no filter."""


class ItemsCursor(BaseModel):
    """The place in a list of items after which the next page begins: the item at row ``after``.

    The row of an item never changes, even in a live gallery and after the item was deleted.
    ``passing`` is the fingerprint of the list's filter; empty for the list of all items.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["items"] = "items"
    bundle: str
    after: int = Field(ge=0, le=2**40)
    passing: str = ""
    at: int = Field(default_factory=lambda: int(time.time()))


class SearchCursor(BaseModel):
    """The place in a query's results where the next page begins: after the first ``start``.

    ``version`` is the gallery's version at the first page; later pages show that version.
    ``options.expected_absent`` is the share used for the first page, ``share_origin`` its origin,
    and ``options.order`` the order of the first page.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["search"] = "search"
    bundle: str
    version: int = Field(0, ge=0, le=2**53)
    query_id: str = Field(pattern="^[0-9a-f]{64}$")
    start: int = Field(ge=1, lt=N_CANDIDATES)
    options: SearchOptions
    share_origin: ShareOrigin = "request"
    at: int = Field(default_factory=lambda: int(time.time()))


CursorT = TypeVar("CursorT", ItemsCursor, SearchCursor)


def write(cursor: ItemsCursor | SearchCursor, secret: bytes) -> str:
    """Serialise for a client, signed with the secret of the directory of bundles."""
    fields = cursor.model_dump_json(exclude_none=True).encode()
    return base64.urlsafe_b64encode(_signature(fields, secret) + fields).decode().rstrip("=")


def read(text: str, kind: type[CursorT], bundle: str, secret: bytes) -> CursorT:
    """Read a cursor that `write` made for a list of this kind and of the served bundle.

    Raises
    ------
    InvalidCursor : the text is not such a cursor.
    OutdatedCursor : the list belongs to another bundle, or the cursor has expired.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        signature, fields = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, _signature(fields, secret)):
            raise InvalidCursor(_NOT_OURS)
        cursor = kind.model_validate_json(fields)
    except (binascii.Error, ValidationError, ValueError):
        raise InvalidCursor(_NOT_OURS) from None
    if cursor.bundle != bundle:
        raise OutdatedCursor(
            f"The cursor is of bundle {cursor.bundle[:12]}, served is {bundle[:12]}: the list may "
            "be another now. Ask for its first page again."
        )
    if time.time() - cursor.at > LIFE_S:
        raise OutdatedCursor(
            f"The cursor is more than {LIFE_S // 60} minutes old. Ask for the first page of the "
            "list again."
        )
    return cursor


def fingerprint(where: str | None) -> str:
    """Return a digest of a filter, however it is written; empty for none."""
    if where is None:
        return ""
    plain = json.dumps(json.loads(where), sort_keys=True)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def require_filter(cursor: ItemsCursor, passing: str) -> None:
    """Refuse a cursor from a list with another filter, whose items the cursor's filter may exclude.

    Raises
    ------
    InvalidCursor
    """
    if cursor.passing != passing:
        raise InvalidCursor(
            "The cursor is of a list with another filter. Send the filter of the page before, or "
            "ask for the first page of this list."
        )


_NOT_OURS = (
    "The cursor received is not one of this list. Send `next_cursor` of the page before "
    "unchanged, or ask for the first page again."
)


def _signature(fields: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, b"cursor" + fields, hashlib.sha256).digest()[:_SIGNATURE_BYTES]
