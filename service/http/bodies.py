"""Bodies of requests: forms, base64 and accepted media types.

`form_of` replaces FastAPI's form reader for searches with a form, the most frequent requests.
FastAPI's reader inspects the model's annotations for each request. This is a quarter of the work of
a search on the event loop.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from model_store.errors import ImageTooLarge, UnsupportedMediaType
from service.http.forms import check_charset
from service.http.understood import is_empty

MULTIPART = "multipart/form-data"
JSON = "application/json"
RAW = ("application/octet-stream", "image/*")

_DATA_URI = re.compile(r"data:[\w.+/;=-]{0,200};base64,", re.ASCII)


def body_of(*accepted: str, required: bool = True) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that refuses media types other than ``accepted``.

    Parameters
    ----------
    accepted : media types; ``image/*`` accepts all image types.
    required : whether a request without a Content-Type is refused.
    """

    async def check(request: Request) -> None:
        declared = request.headers.get("content-type", "")
        check_charset(declared)
        received = declared.split(";")[0].strip().lower()
        if not received and not required:
            return
        wide = f"{received.split('/')[0]}/*"
        if received not in accepted and wide not in accepted:
            raise UnsupportedMediaType(
                f"The body is declared as {received[:100] or 'nothing'}; wanted: "
                f"{' or '.join(accepted)}. Set the header Content-Type, or choose the path for "
                "this type in /docs."
            )

    return check


def from_base64(text: str, max_bytes: int) -> bytes:
    """Return the bytes of an image from base64 (RFC 4648 §4, padded), or from a ``data:`` URI.

    The media type of a data URI is ignored, because the bytes show the image format.

    Raises
    ------
    ImageTooLarge : the image has more than ``max_bytes``; checked before decoding.
    RequestValidationError : the text is not base64, for example a URL.
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
        # Decoded in pieces, because decoding a large text at once would block all other requests.
        pieces = range(start, len(text), PIECE)
        decoded = [base64.b64decode(text[at : at + PIECE], validate=True) for at in pieces]
    except (binascii.Error, ValueError):
        decoded = None
    if decoded is None or "=" in text[start:-2]:  # padding is allowed at the end only
        raise RequestValidationError(
            [
                {
                    "type": "base64",
                    "loc": ("body", "image_base64"),
                    "msg": "Should be an image file in base64 (RFC 4648 section 4, padded, no "
                    "white space), alone or in a data: URI; URLs are not fetched",
                }
            ]
        )
    return b"".join(decoded)


ModelT = TypeVar("ModelT", bound=BaseModel)

_check_media_type = body_of(MULTIPART)

PIECE = 2**20
"""Number of base64 characters in one decoding step; a multiple of four."""


@asynccontextmanager
async def form_of(request: Request, model: type[ModelT]) -> AsyncIterator[ModelT]:
    """Read the form of a request as ``model``, and close the form's files afterwards.

    As in FastAPI, an empty field is treated as a missing field.

    Raises
    ------
    UnsupportedMediaType : the Content-Type is not ``multipart/form-data``.
    RequestValidationError : a field is missing or invalid.
    InvalidForm : the form is incomplete or malformed.
    """
    await _check_media_type(request)
    form = await request.form()
    try:
        sent = {name: value for name, value in form.items() if not is_empty(value)}
        yield validated(model, sent, "body")
    finally:
        await form.close()


def validated(model: type[ModelT], sent: Mapping[str, object], place: str) -> ModelT:
    """Validate the values that were sent, and return them as ``model``.

    Parameters
    ----------
    place : part of the request with the values, for error messages: ``query`` or ``body``.

    Raises
    ------
    RequestValidationError : a value is missing or invalid.
    """
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError(
            [{**entry, "loc": (place, *entry["loc"])} for entry in errors]
        ) from None
