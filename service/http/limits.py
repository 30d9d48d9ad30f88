"""Limits of one request and of one connection."""

from __future__ import annotations

from collections.abc import Sequence

MAX_HEAD_BYTES = 32 * 2**10
MAX_HEADERS = 128
"""Maximum bytes and headers of a request head. `MAX_HEAD_BYTES` also limits the trailers of a
chunked body."""

MAX_PIPELINED = 4
"""Maximum number of pipelined requests on a connection."""

MAX_PIECES = 1_024
BYTES_OF_A_PIECE = 64
"""A body of n bytes may arrive in at most ``MAX_PIECES + n // BYTES_OF_A_PIECE`` pieces."""

HEAD_TIMEOUT_S = 10.0
"""Timeout in seconds for a complete request head, from its first byte. For the first request, the
time begins with the connection."""

READ_TIMEOUT_S = 30.0
"""Timeout in seconds for a client that does not read its answer."""

LINGER_S = 30.0
LINGER_AT_SHUTDOWN_S = 1.0
"""If the service answers before the whole body has arrived, it reads and discards the rest for
`LINGER_S` seconds. While the service stops, this time is `LINGER_AT_SHUTDOWN_S` seconds."""

UPLOAD_GRACE_S = 10.0
"""Seconds before the minimum upload rate applies to a body."""

FORM_ALLOWANCE = 64 * 2**10
"""Maximum bytes of a form in addition to its images: boundaries, part headers, other fields."""

SMALL_BODY_BYTES = 256 * 2**10
HELD_BODIES_BYTES = 64 * 2**20
"""All bodies larger than `SMALL_BODY_BYTES` share the memory `HELD_BODIES_BYTES`, which is enough
for three images of the maximum size. The limit on concurrent requests also limits the memory of
smaller bodies."""

MAX_BATCH = 32
"""Maximum number of images, or of items, in a batch. Larger batches are not faster, and delay other
clients."""

MAX_FILES = MAX_FIELDS = 2 * MAX_BATCH
"""Maximum number of files, and of fields, in a form. A form with more is not read completely."""

MAX_FIELD_BYTES = 2**20
"""Maximum bytes of a text field in a form; enough for 32 items with metadata."""

MAX_JSON_PARTS = 2**14
"""Maximum number of opening brackets, commas and colons in a JSON document, outside strings; more
than the largest metadata can have."""

MAX_LARGE_JSON_PARTS = 2**19
"""The same for a document of vectors or of annotations: enough for 1,000 neighbours with 256
numbers each, or for 1,000 annotated tasks of Label Studio."""

MAX_TEXT_BYTES = 64 * 2**10
"""Maximum bytes of a JSON document with a text query: enough for a filter and the longest text with
every character escaped (12 bytes)."""

MAX_VECTOR_BYTES = 4 * 2**20
"""Maximum bytes of a JSON document with vectors. The document can have 1,000 neighbours with 256
numbers each as text, or larger vectors in base64."""

AT_ONCE_BYTES = 2**18
"""Maximum bytes of a JSON document that is parsed on the event loop. Parsing then takes about a
millisecond. Larger documents are parsed in a thread, so that other requests do not wait."""


def is_too_large(address: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the request line and headers exceed the limits."""
    n_bytes = len(address) + sum(len(name) + len(value) for name, value in headers)
    return n_bytes > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS
