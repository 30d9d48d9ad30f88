"""The rule for metadata of items; commands and requests use the same rule."""

from __future__ import annotations

import json
from typing import Any

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
