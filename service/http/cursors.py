"""Cursors: positions in a list, each valid for one bundle.

A cursor is opaque to clients: URL-safe base64 of a few fields, with an HMAC signature. The
signature prevents clients from changing the gallery state that a cursor names. A cursor expires,
and contains no secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from dataclasses import asdict, dataclass
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_store.curation import Place
from model_store.errors import InvalidCursor, OutdatedCursor
from model_store.search import N_CANDIDATES
from service.schemas import SearchFields, ShareOrigin

_SIGNATURE_BYTES = 16

LIFE_S = 3600
"""Lifetime of a cursor in seconds."""

MAX_LENGTH = 5_000
"""Maximum length of a cursor in characters. No cursor of the service reaches this length, even with
the longest filter. A percent-encoded cursor of this length fits into an address of 64 KiB."""

MAX_ITEMS_LENGTH = 1024
"""Maximum length of an `ItemsCursor` in characters; this cursor contains no filter."""


class ItemsCursor(BaseModel):
    """A position in a list of items: the next page begins after the item in row ``after``.

    An item keeps its row number when other items are added, and after its own deletion.
    ``parameter`` and ``value`` are those of the list's `Selection`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["items"] = "items"
    bundle: str
    after: int = Field(ge=0, le=2**40)
    parameter: str = "filter"
    value: str = ""
    at: int = Field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class ListSelection:
    """The parameter that decides which items a list contains, and its value.

    Each list has another parameter.
    """

    parameter: Literal["filter", "confidence", "threshold"]
    value: str

    @classmethod
    def by_filter(cls, where: str | None) -> Self:
        """Return the selection by a filter; all JSON spellings of a filter give the same one."""
        if where is None:
            return cls("filter", "")
        plain = json.dumps(json.loads(where), sort_keys=True)
        return cls("filter", hashlib.blake2b(plain.encode(), digest_size=8).hexdigest())


class RankedCursor(BaseModel):
    """A place in a list in the order of strength: the next page begins after this place.

    ``strength`` and ``after``, a row, are None on the first page. ``parameter`` and ``value`` are
    those of the list's `Selection`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["ranked"] = "ranked"
    bundle: str
    strength: float | None = None
    after: int | None = Field(None, ge=0, le=2**40)
    parameter: str
    value: str
    at: int = Field(default_factory=lambda: int(time.time()))


class SearchCursor(BaseModel):
    """A position in the results of a query: the next page begins after ``start`` results.

    ``version`` is the gallery's version at the first page; later pages show the same version.
    ``options.expected_absent`` is the share of absent queries that the first page used, and
    ``share_origin`` is its origin. ``options.order`` is the order of the first page.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["search"] = "search"
    bundle: str
    version: int = Field(0, ge=0, le=2**53)
    query_id: str = Field(pattern="^[0-9a-f]{64}$")
    start: int = Field(ge=1, lt=N_CANDIDATES)
    options: SearchFields
    share_origin: ShareOrigin = "request"
    at: int = Field(default_factory=lambda: int(time.time()))


CursorT = TypeVar("CursorT", ItemsCursor, RankedCursor, SearchCursor)


def write(cursor: ItemsCursor | RankedCursor | SearchCursor, secret: bytes) -> str:
    """Serialise and sign a cursor. All bundles of a directory have the same ``secret``."""
    fields = cursor.model_dump_json(exclude_none=True).encode()
    return base64.urlsafe_b64encode(_signature(fields, secret) + fields).decode().rstrip("=")


def read(text: str, kind: type[CursorT], bundle: str, secret: bytes) -> CursorT:
    """Parse a cursor from `write`, and check its signature, bundle and age.

    Raises
    ------
    InvalidCursor : the text is not a cursor of this ``kind``, or its signature is wrong.
    OutdatedCursor : the cursor belongs to another bundle, or has expired.
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
            f"The cursor belongs to bundle {cursor.bundle[:12]}, but {bundle[:12]} is served now: "
            "the list may have changed. Request the first page again."
        )
    if time.time() - cursor.at > LIFE_S:
        raise OutdatedCursor(
            f"The cursor is more than {LIFE_S // 60} minutes old. Request the first page of the "
            "list again."
        )
    return cursor


def to_page_after(
    last: int | None, bundle: str, secret: bytes, selection: ListSelection
) -> str | None:
    """Return the cursor to the page after the item in row ``last``; None if ``last`` is None."""
    if last is None:
        return None
    return write(ItemsCursor(bundle=bundle, after=last, **asdict(selection)), secret)


def row_before(
    text: str | None, bundle: str, secret: bytes, selection: ListSelection
) -> int | None:
    """Return the row after which a page of items begins; None for the first page.

    Raises
    ------
    InvalidCursor : see `read`; also if the cursor belongs to a list with another ``selection``.
    OutdatedCursor : see `read`.
    """
    if text is None:
        return None
    cursor = read(text, ItemsCursor, bundle, secret)
    _require_same(cursor, selection)
    return cursor.after


def to_page_from(place: Place | None, bundle: str, secret: bytes, selection: ListSelection) -> str:
    """Return the cursor to the page after a place in a ranking; None for the first page."""
    strength, row = place or (None, None)
    cursor = RankedCursor(bundle=bundle, strength=strength, after=row, **asdict(selection))
    return write(cursor, secret)


def place_before(
    text: str | None, bundle: str, secret: bytes, selection: ListSelection
) -> Place | None:
    """Return the place in a ranking after which a page begins; None for the first page.

    Raises
    ------
    InvalidCursor, OutdatedCursor : see `row_before`.
    """
    if text is None:
        return None
    cursor = read(text, RankedCursor, bundle, secret)
    _require_same(cursor, selection)
    if cursor.strength is None or cursor.after is None:
        return None
    return cursor.strength, cursor.after


def _require_same(cursor: ItemsCursor | RankedCursor, selection: ListSelection) -> None:
    """Raise `InvalidCursor` if the cursor belongs to a list with another ``selection``."""
    name = selection.parameter
    if cursor.parameter != name:
        raise InvalidCursor(_NOT_OURS)
    if cursor.value != selection.value:
        raise InvalidCursor(
            f"The cursor belongs to a list with another `{name}`. Send the `{name}` of the "
            f"previous page, or request the first page with the new `{name}`."
        )


_NOT_OURS = (
    "The cursor does not belong to this list. Send `next_cursor` of the previous page unchanged, "
    "or request the first page again."
)


def _signature(fields: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, b"cursor" + fields, "sha256")[:_SIGNATURE_BYTES]
