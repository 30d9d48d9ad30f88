"""Limits of one request and of one connection."""

from __future__ import annotations

from collections.abc import Sequence

MAX_HEAD_BYTES = 32 * 2**10
MAX_HEADERS = 128
"""Maximum bytes of a request line with headers, and of the trailers of a chunked body."""

MAX_PIPELINED = 4
"""Maximum number of pipelined requests on a connection."""

MAX_PIECES = 1_024
BYTES_OF_A_PIECE = 64
"""Maximum number of pieces of a body, beside one for each of so many bytes."""

HEAD_TIMEOUT_S = 10.0
"""Seconds from the first byte of a head, or from the connection, to the head's end."""

READ_TIMEOUT_S = 30.0
"""Seconds without progress before a client that does not read is disconnected."""

LINGER_S = 30.0
LINGER_AT_SHUTDOWN_S = 1.0
"""Seconds for which the rest of a request that was answered early is read and discarded."""

UPLOAD_GRACE_S = 10.0
"""Seconds of grace before a body is compared with the minimum rate."""

FORM_ALLOWANCE = 64 * 2**10
"""Bytes of a body beside its images: boundaries, part headers, other fields."""

SMALL_BODY_BYTES = 256 * 2**10
HELD_BODIES_BYTES = 64 * 2**20
"""Bodies larger than the first value share a memory limit, the second value: three files of the
largest size. The number of small bodies is limited by the number of concurrent requests."""

MAX_FILES = MAX_FIELDS = 64
"""Maximum number of files and fields of a form, twice that of the largest form."""

MAX_FIELD_BYTES = 2**20
"""Maximum bytes of a text field of a form: 32 items with their metadata."""

MAX_JSON_PARTS = 4_096
"""Maximum number of brackets, commas and colons of a JSON document, including those in strings."""

TEXT_PATH = "/search/text"
MAX_TEXT_BYTES = 64 * 2**10
"""Maximum bytes of a document with a text query: each character escaped in twelve bytes, and a
filter."""

VECTOR_PATHS = ("/search/vector", "/decide")
MAX_JSON_NUMBERS = 2**18
MAX_VECTOR_BYTES = 4 * 2**20
"""Maximum commas and bytes of a document with vectors: a thousand neighbours of 256 numbers, or of
three thousand in base64."""

AT_ONCE_BYTES = 2**18
"""Maximum bytes that are read, hashed or decoded on the event loop, where all requests wait: a
millisecond."""


def is_too_large(address: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the request line and headers exceed the limits."""
    n_bytes = len(address) + sum(len(name) + len(value) for name, value in headers)
    return n_bytes > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS
