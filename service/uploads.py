"""The bodies that images come in, other than files of a form."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from model_store.errors import ImageTooLarge, UnsupportedMediaType

MULTIPART = "multipart/form-data"
JSON = "application/json"
RAW = ("application/octet-stream", "image/*")

_DATA_URI = re.compile(r"data:[\w.+/;=-]{0,200};base64,", re.ASCII)


def body_of(*accepted: str, required: bool = True) -> Callable[[Request], Awaitable[None]]:
    """A dependency that refuses bodies of another media type than ``accepted`` (``x/*`` for any x).

    Parameters
    ----------
    required : whether the type must be named at all.
    """

    async def check(request: Request) -> None:
        received = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if not received and not required:
            return
        wide = f"{received.split('/')[0]}/*"
        if received not in accepted and wide not in accepted:
            raise UnsupportedMediaType(
                f"The body is declared as {received[:100] or 'nothing'}; wanted: "
                f"{' or '.join(accepted)}. Set the header Content-Type, or see /docs for the path "
                "that takes what you send."
            )

    return check


def from_base64(text: str, max_bytes: int) -> bytes:
    """The bytes of an image in base64 (RFC 4648 §4, padded), or in a ``data:`` URI of it.

    What a data URI says of the media type is not believed: the bytes tell.

    Raises
    ------
    ImageTooLarge : it would have more than ``max_bytes``; found before anything is decoded.
    RequestValidationError : it is something else, such as a URL.
    """
    prefix = _DATA_URI.match(text)
    start = prefix.end() if prefix else 0
    n_bytes = (len(text) - start) // 4 * 3 - text.endswith("=") - text.endswith("==")
    if n_bytes > max_bytes:
        raise ImageTooLarge(
            f"The image has {n_bytes:,} bytes; at most {max_bytes:,} are accepted. "
            "Send a smaller or more compressed image."
        )
    try:
        return base64.b64decode(text[start:], validate=True)
    except (binascii.Error, ValueError):
        raise RequestValidationError(
            [
                {
                    "type": "base64",
                    "loc": ("body", "image_base64"),
                    "msg": "Should be an image file in base64 (RFC 4648 section 4, padded, no "
                    "white space), alone or in a data: URI; URLs are not fetched",
                }
            ]
        ) from None
