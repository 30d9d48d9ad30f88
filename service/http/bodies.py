"""Bodies of requests: forms, base64 and accepted media types.

`form_of` replaces FastAPI's form reader on the busiest path. FastAPI's reader inspects the model's
annotations for each request, which takes a quarter of the event loop's time for a search.
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
    """Return a dependency that refuses media types other than ``accepted`` (``x/*`` for any x).

    Parameters
    ----------
    required : whether the type is required.
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
                f"{' or '.join(accepted)}. Set the header Content-Type, or see /docs for the path "
                "that takes what you send."
            )

    return check


def from_base64(text: str, max_bytes: int) -> bytes:
    """The bytes of an image in base64 (RFC 4648 §4, padded), or in a ``data:`` URI of it.

    The media type of a data URI is ignored; the format is read from the bytes.

    Raises
    ------
    ImageTooLarge : it would have more than ``max_bytes``, which is checked before decoding.
    RequestValidationError : it is not base64, for example a URL.
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
        # In pieces, because a large one would delay all other requests.
        pieces = range(start, len(text), PIECE)
        decoded = [base64.b64decode(text[at : at + PIECE], validate=True) for at in pieces]
    except (binascii.Error, ValueError):
        decoded = None
    if decoded is None or "=" in text[start:-2]:  # between pieces there is no padding
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
"""Characters of base64 that are decoded at once, a multiple of four."""


@asynccontextmanager
async def form_of(request: Request, model: type[ModelT]) -> AsyncIterator[ModelT]:
    """Read the body of a request as ``model``, and close its files afterwards.

    An empty field counts as not sent, as in FastAPI.

    Raises
    ------
    UnsupportedMediaType : its Content-Type is not a form.
    RequestValidationError : it is not a ``model``.
    InvalidForm : it is not a complete form.
    """
    await _check_media_type(request)
    form = await request.form()
    try:
        sent = {name: value for name, value in form.items() if not is_empty(value)}
        yield validated(model, sent, "body")
    finally:
        await form.close()


def validated(model: type[ModelT], sent: Mapping[str, object], place: str) -> ModelT:
    """Read the values in one ``place`` of a request (query string, body) as ``model``.

    Raises
    ------
    RequestValidationError : it is none.
    """
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError(
            [{**entry, "loc": (place, *entry["loc"])} for entry in errors]
        ) from None
