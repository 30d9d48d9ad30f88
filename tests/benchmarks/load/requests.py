"""Requests as bytes, made before anything is measured, and how a right answer to each is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.load.photographs import TOKEN

BOUNDARY = "vouch-benchmark"

Part = tuple[str, bytes]
"""The name of a form's file, and its bytes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes
    ----------
    kind : such as ``search phone`` or ``write``.
    pieces : of head and body, between which the number of the request is written.
    right : what an answer holds that is right, such as the id of the first result.
    """

    kind: str
    pieces: tuple[bytes, ...]
    right: tuple[bytes, ...]


def form(
    method: str, path: str, files: Sequence[Part], fields: Mapping[str, str] | None = None
) -> tuple[bytes, ...]:
    """Return the pieces of a request with a form of files and text fields."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="query"\r\n'
        "Content-Type: image/jpeg\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in files
    ]
    parts += [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()
        for name, text in (fields or {}).items()
    ]
    body = b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    return tuple((head.encode() + body).split(TOKEN))
