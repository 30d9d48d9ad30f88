"""Rules for ids, labels and metadata of items, for indexes, backups, commands and requests."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

MAX_ID_LENGTH = 1024
"""Maximum number of characters of an id. An id can be the address of an image, and a URL must be
able to contain the id."""

MAX_LABEL_LENGTH = 200
"""Maximum number of characters of a label that a change gives to an item."""

_TAKEN_ENDINGS = ("/similar", "/thumbnail")

_UNTEXTUAL = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, unpaired surrogates, line and paragraph separators."""

_REVERSING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Control characters that change the direction of text, and so can disguise text (CVE-2021-42574).
Simple direction marks are allowed."""

_PLAIN = re.compile(r"[ -~]*")


def check_text(text: str) -> str:
    """Return an id or a label if its characters are allowed.

    Raises
    ------
    ValueError : it contains unreadable characters.
    """
    if _PLAIN.fullmatch(text) is None:  # fast path: most ids are plain
        for char in text:
            if unicodedata.category(char) in _UNTEXTUAL or char in _REVERSING:
                raise ValueError(
                    f"must not have control characters or overrides of direction, such as {char!a}"
                )
    return text


def check_label(label: str) -> str:
    """Return a label if an item may have it.

    Raises
    ------
    ValueError : it is blank or too long, or contains unreadable characters.
    """
    if not label.strip():
        raise ValueError("must not be blank")
    if len(label) > MAX_LABEL_LENGTH:
        raise ValueError(f"must have at most {MAX_LABEL_LENGTH} characters, not {len(label):,}")
    return check_text(label)


def check_new_label(label: str) -> str:
    """Return a label if a change may give it to an item; see `check_label`.

    Raises
    ------
    ValueError : it is not a valid label, or has spaces around it, so it would look like another
        label.
    """
    check_label(label)
    if label != label.strip():
        raise ValueError("must not begin or end with a space")
    return label


def check_item_id(item_id: str) -> str:
    """Return the id of an item if it is valid.

    Raises
    ------
    ValueError : it is not a valid id, so no request could name the item.
    """
    if not 1 <= len(item_id) <= MAX_ID_LENGTH:
        raise ValueError(f"must have 1 to {MAX_ID_LENGTH:,} characters, not {len(item_id):,}")
    check_text(item_id)
    if {".", ".."} & {*item_id.split("/")}:
        raise ValueError(
            "must not have '.' or '..' between slashes, because HTTP clients remove them from a "
            "URL and so request another item"
        )
    if item_id.endswith(_TAKEN_ENDINGS):
        raise ValueError(f"must not end with {' or '.join(_TAKEN_ENDINGS)}: paths of items do")
    return item_id


MAX_METADATA_BYTES = 16 * 2**10
"""Maximum size of metadata as JSON. Keep larger data in another store, under the item's id."""


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an item if an answer can contain it.

    Raises
    ------
    ValueError : it is no JSON, is too large, or has an unpaired surrogate.
    """
    try:
        size = len(json.dumps(metadata, allow_nan=False).encode())
    except (ValueError, RecursionError) as error:
        raise ValueError("must be JSON: no NaN, no infinity, and not too deep") from error
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"has {size} bytes as JSON, at most {MAX_METADATA_BYTES} are accepted")
    try:
        json.dumps(metadata, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be Unicode text: no unpaired surrogate, and UTF-8") from error
    return metadata


GROUP_FIELD = "group"
"""Metadata field of an added item that names its series, like the column `group` of a manifest."""


def series_in(metadata: Mapping[str, Any]) -> str | None:
    """Return the series that the metadata of an item name: a text or a whole number, or None."""
    group = metadata.get(GROUP_FIELD)
    return str(group) if type(group) is int or (isinstance(group, str) and group.strip()) else None
