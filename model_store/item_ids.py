"""The rule of an item's id, the same in an index, a backup, a command and a request."""

from __future__ import annotations

import re
import unicodedata

MAX_ID_LENGTH = 1024
"""Characters: addresses of images are ids, and an id has to fit into an address itself."""

_TAKEN_ENDINGS = ("/similar", "/thumbnail")

_UNTEXTUAL = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, halves of surrogate pairs, ends of lines and paragraphs."""

_REVERSING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that make text look like another (CVE-2021-42574); marks of direction alone do not."""

_PLAIN = re.compile(r"[ -~]*")


def check_text(text: str) -> str:
    """Return an id or a label.

    Raises
    ------
    ValueError : it has characters that no person can read.
    """
    if _PLAIN.fullmatch(text) is None:  # of a million ids most are plain
        for char in text:
            if unicodedata.category(char) in _UNTEXTUAL or char in _REVERSING:
                raise ValueError(
                    f"must not have control characters or overrides of direction, such as {char!a}"
                )
    return text


def check_item_id(item_id: str) -> str:
    """Return the id of an item.

    Raises
    ------
    ValueError : it is no id: no request could name the item.
    """
    if not 1 <= len(item_id) <= MAX_ID_LENGTH:
        raise ValueError(f"must have 1 to {MAX_ID_LENGTH:,} characters, not {len(item_id):,}")
    check_text(item_id)
    if {".", ".."} & {*item_id.split("/")}:
        raise ValueError(
            "must not have '.' or '..' between slashes: clients take them out of an address, and "
            "ask for another item"
        )
    if item_id.endswith(_TAKEN_ENDINGS):
        raise ValueError(f"must not end with {' or '.join(_TAKEN_ENDINGS)}: paths of items do")
    return item_id
