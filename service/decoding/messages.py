"""Messages between the service and a decoder process; the service does not trust the replies."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from model_store.errors import ImageError
from model_store.gallery import Thumbnail
from model_store.images import Preprocessing
from model_store.images.quality import MEASURES
from service.decoding.decoder import Prepared
from service.processes.shared_pixels import SharedPixels

_ERRORS = {error.__name__: error for error in ImageError.__subclasses__()}


@lru_cache(maxsize=8)
def request_message(
    preprocessing: Preprocessing, *, measured: bool, thumbnail: bool, preview_side: int | None
) -> bytes:
    """Return the header of a request to a decoder."""
    header = {
        "preprocessing": asdict(preprocessing),
        "measured": measured,
        "thumbnail": thumbnail,
        "preview_side": preview_side,
    }
    return json.dumps(header).encode()


_ONE_EACH = Field(min_length=len(MEASURES), max_length=len(MEASURES))
_Side = Annotated[int, Field(gt=0, lt=2**31)]


class _Reply(BaseModel):
    """A decoder's reply, validated strictly: a malicious file may control the decoder."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Refused(_Reply):
    error: str
    detail: str


class _Decoded(_Reply):
    format: str
    width: _Side
    height: _Side
    warnings: tuple[str, ...]
    measures: Annotated[list[float], _ONE_EACH] | None = None
    thumbnail: Base64Bytes | None = None
    preview: Base64Bytes = b""


class _Started(_Reply):
    sandbox: list[Literal["seccomp", "landlock"]]


_ANSWER: TypeAdapter[_Decoded | _Refused] = TypeAdapter(_Decoded | _Refused)


def read_started(message: bytes) -> tuple[str, ...]:
    """Read the first message of a decoder: the parts of the sandbox that are in force.

    Raises
    ------
    EOFError : the message is not valid.
    """
    try:
        return tuple(_Started.model_validate_json(message).sandbox)
    except ValidationError as error:
        raise EOFError("a decoder sent a malformed answer") from error


def read_reply(
    message: bytes, pictures: SharedPixels, preprocessing: Preprocessing
) -> Prepared | ImageError:
    """Read a decoder's reply.

    The reply is validated strictly: the process parses hostile files and may have been compromised.

    Raises
    ------
    EOFError : the reply is not valid.
    """
    try:
        answer = _ANSWER.validate_json(message)
        if isinstance(answer, _Refused):
            return _ERRORS[answer.error](answer.detail)
    except (ValidationError, KeyError) as error:
        raise EOFError("a decoder sent a malformed answer") from error
    return Prepared(
        pictures.read((preprocessing.height, preprocessing.width, 3)),
        answer.format,
        answer.width,
        answer.height,
        answer.warnings,
        None if answer.measures is None else np.array(answer.measures),
        None if answer.thumbnail is None else _thumbnail(answer.thumbnail),
        answer.preview,
    )


def _thumbnail(data: bytes) -> Thumbnail:
    """Return a thumbnail; its media type follows from its bytes, and is never sent by a decoder."""
    return Thumbnail(data, "image/png" if data.startswith(b"\x89PNG") else "image/jpeg")
