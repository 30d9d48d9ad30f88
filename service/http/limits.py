"""Limits of one request and of one connection."""

from __future__ import annotations

from collections.abc import Sequence

MAX_HEAD_BYTES = 32 * 2**10
MAX_HEADERS = 128
"""The bytes of a request's line and headers, and of what follows a body in chunks."""

MAX_PIPELINED = 4
"""Requests that a connection may send ahead of their answers."""

MAX_PIECES = 1_024
BYTES_OF_A_PIECE = 64
"""The pieces that a body may come in, beside one for so many bytes."""

HEAD_TIMEOUT_S = 10.0
"""From the first byte of a head, or the connection, to the head's end."""

READ_TIMEOUT_S = 30.0
"""For which a client may read nothing of an answer."""

LINGER_S = 30.0
LINGER_AT_SHUTDOWN_S = 1.0
"""For which the rest of a request that was answered early is read and discarded."""

UPLOAD_GRACE_S = 10.0
"""After which the bytes of a body are compared with the least rate."""

FORM_ALLOWANCE = 64 * 2**10
"""Bytes a body may hold beyond its images: boundaries, part headers, other fields."""

SMALL_BODY_BYTES = 256 * 2**10
HELD_BODIES_BYTES = 64 * 2**20
"""A body of more than the first counts, and all that count are not more than the second: three of
the largest images as files. Small ones are as many as requests at work at most."""

MAX_FILES = MAX_FIELDS = 64
"""The files and other fields of a form, twice what the largest takes."""

MAX_FIELD_BYTES = 2**20
"""The bytes of a form's field that is no file: 32 items with their metadata."""

MAX_JSON_PARTS = 4_096
"""Brackets, commas and colons of a document, those in its texts too."""

TEXT_PATH = "/search/text"
MAX_TEXT_BYTES = 64 * 2**10
"""A document with a text: all its characters at twelve bytes each, escaped, and a filter."""

VECTOR_PATHS = ("/search/vector", "/decide")
MAX_JSON_NUMBERS = 2**18
MAX_VECTOR_BYTES = 4 * 2**20
"""The commas of a document with vectors, whose numbers are cheap, and its bytes: a thousand
neighbours of 256 numbers, or in base64 of three thousand."""

AT_ONCE_BYTES = 2**18
"""The bytes that may be read, hashed or decoded while everybody else waits: a millisecond."""


def is_too_large(address: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the line and headers of a request are more than may be."""
    n_bytes = len(address) + sum(len(name) + len(value) for name, value in headers)
    return n_bytes > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS
