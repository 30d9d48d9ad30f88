"""Receives and parses the bodies of requests, with limits on size, memory, time and CPU time.

`BoundedBodies` limits each body, and the memory of all bodies together. `BoundedRequest` parses
forms and JSON documents.

`python_multipart` finds the parts. Starlette's form reader is not used: it writes files to the
disk, reads encodings other than UTF-8 as Latin-1, and accepts incomplete forms.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Container
from contextlib import aclosing
from dataclasses import dataclass, field
from email.message import Message as Header
from functools import lru_cache, partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.types import Message, Receive, Scope

from model_store.errors import (
    ImageTooLarge,
    InvalidForm,
    InvalidRequest,
    UnsupportedMediaType,
    UploadTooSlow,
)
from model_store.gallery.filters.grammar import UnfitJson, read_json
from service.scheduling import FairShare

from . import limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

ResultT = TypeVar("ResultT")

_UTF_8 = frozenset({b"utf-8", b"utf8", b"us-ascii"})

_LIKE_ASCII = frozenset({b"iso-8859-1", b"iso-8859-15", b"windows-1252"})
"""Encodings that are identical to ASCII for ASCII characters."""

_PLAIN_ENCODINGS = {
    b"content-transfer-encoding": ("7bit", "8bit", "binary"),
    b"content-encoding": ("identity",),
}
"""Encoding headers of a part, with the values that mean "not encoded"."""


@dataclass(slots=True)
class _Part:
    """The part of a form that the parser is reading."""

    header: list[tuple[bytes, bytes]] = field(default_factory=list)
    name: str = ""
    file_name: str | None = None
    pieces: list[bytes] = field(default_factory=list)
    n_bytes: int = 0


class _Form:
    """The fields and files of a form, collected by the callbacks of the parser."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str | UploadFile]] = []
        self._part = _Part()
        self._header_name = self._header_value = b""
        self._n_files = self._n_fields = 0
        self._is_whole = False

    async def read(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        """Read the whole form.

        The parser accepts truncated forms, and ignores data after the closing boundary. This method
        refuses both.
        """
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if boundary is None:
            raise _refusal("Missing boundary in multipart")
        closing, before = b"--" + boundary + b"--", b""
        callbacks: MultipartCallbacks = {
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        try:
            parser = MultipartParser(boundary, callbacks)
            async for piece in body:
                had_ended = self._is_whole
                parser.write(piece)
                if self._is_whole:
                    after = piece if had_ended else (before + piece).partition(closing)[2]
                    if after.strip():
                        raise _refusal("it continues after its closing boundary")
                before = (before + piece if len(piece) < len(closing) else piece)[-len(closing) :]
        except FormParserError:
            raise _refusal("Invalid multipart data") from None
        finally:
            piece = b""  # the traceback of an error would keep the piece in memory
        if not self._is_whole:
            raise _refusal("it ends before its closing boundary")

    def drop(self) -> None:
        """Close the files, and delete all parts."""
        for _, value in self.items:
            if isinstance(value, UploadFile):
                value.file.close()
        self.items.clear()
        self._part = _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._part.header.append((self._header_name.lower(), self._header_value))
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        """Begin a file or a field, and refuse a part with two names or encoded content."""
        part = self._part
        headers = dict(part.header)
        if len(headers) < len(part.header):
            raise _refusal("a part has a header twice")
        part.name, part.file_name = _names_in(headers.get(b"content-disposition", b""))
        if part.file_name is None:
            self._n_fields += 1
        else:
            self._n_files += 1
        if self._n_files > limits.MAX_FILES:
            raise InvalidForm(
                f"The form has more than {limits.MAX_FILES} files. Nothing was done. Send at most "
                f"{limits.MAX_BATCH} images in a batch."
            )
        if self._n_fields > limits.MAX_FIELDS:
            raise _refusal(f"Too many fields. At most {limits.MAX_FIELDS} fields are read")
        for name, plain in _PLAIN_ENCODINGS.items():
            encoding = headers.get(name, b"").decode("latin-1").strip().lower()
            if encoding and encoding not in plain:
                raise UnsupportedMediaType(
                    f"The part {part.name[:100]!r} is encoded as {encoding[:40]!r} "
                    f"({name.decode().title()}), which the service does not decode. Send its "
                    "bytes unencoded."
                )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        part.n_bytes += end - start
        if part.file_name is None and part.n_bytes > limits.MAX_FIELD_BYTES:
            raise _refusal(f"Part exceeded maximum size of {limits.MAX_FIELD_BYTES // 1024}KB")
        part.pieces.append(data[start:end])

    def _on_part_end(self) -> None:
        """Join all pieces of the part in one step; otherwise, each piece would copy the data."""
        part, content = self._part, b"".join(self._part.pieces)
        self._part = _Part()
        if part.file_name is None:
            self.items.append((part.name, _text_of(part, content)))
            return
        upload = UploadFile(
            file=_InMemory(content),
            size=len(content),
            filename=part.file_name,
            headers=Headers(raw=part.header),
        )
        self.items.append((part.name, upload))

    def _on_end(self) -> None:
        self._is_whole = True


def _text_of(part: _Part, content: bytes) -> str:
    """Return the text of a field.

    Raises
    ------
    UnsupportedMediaType : the part declares an encoding other than UTF-8.
    InvalidForm : the bytes are not valid UTF-8.
    """
    # Java clients declare ISO-8859-1. For ASCII text, its bytes are the same as in UTF-8.
    allowed = _UTF_8 | _LIKE_ASCII if content.isascii() else _UTF_8
    content_type = dict(part.header).get(b"content-type", b"")
    if content_type:
        check_charset(content_type.decode("latin-1"), allowed)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _refusal(
            f"its field {part.name[:100]!r} is not text in UTF-8; a file needs a file name "
            '(filename="…" in its Content-Disposition)'
        ) from None


def check_charset(content_type: str, allowed: frozenset[bytes] = _UTF_8) -> None:
    """Refuse a Content-Type whose ``charset`` is not one of the ``allowed`` encodings.

    Raises
    ------
    UnsupportedMediaType : the charset is another encoding.
    """
    if "charset" not in content_type.lower():  # the usual case, which needs no parser
        return
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.lower() not in allowed:
        raise UnsupportedMediaType(
            f"Content-Type declares the charset {charset[:40].decode('latin-1')!r}; only UTF-8 is "
            "accepted. Send UTF-8, and omit the charset in Content-Type."
        )


class _InMemory(BytesIO):
    """A file in memory; Starlette reads it without a thread, because of its attribute."""

    _rolled = False


_MAX_CACHED_BYTES = 512


def _names_in(disposition: bytes) -> tuple[str, str | None]:
    """Return the name and the file name in a Content-Disposition header.

    Raises
    ------
    InvalidForm : there is no name, or there are two names.
    """
    if len(disposition) <= _MAX_CACHED_BYTES:
        return _cached_names(disposition)
    return _read_names(disposition)


def _read_names(disposition: bytes) -> tuple[str, str | None]:
    if _n_names(disposition) > 1:
        raise _refusal("a part has two names")
    options = parse_options_header(disposition)[1]
    if b"name" not in options:
        raise _refusal('The Content-Disposition header field "name" must be provided')
    file_name = options.get(b"filename")
    return _decoded(options[b"name"]), None if file_name is None else _decoded(file_name)


_cached_names = lru_cache(maxsize=1024)(_read_names)  # forms of one client have the same names


def _n_names(disposition: bytes) -> int:
    """Return the number of parameters ``name`` in a Content-Disposition header.

    `parse_options_header` returns only the last one.
    """
    header = Header()
    header["Content-Disposition"] = disposition.decode("latin-1")
    parameters = header.get_params([], "Content-Disposition")
    # The extended syntax `name*` has a tuple as its value; `parse_options_header` ignores it.
    return sum(name == "name" and isinstance(value, str) for name, value in parameters)


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


def _refusal(why: str) -> InvalidForm:
    return InvalidForm(
        f"The form cannot be read: {why}. Nothing was done. Send the whole form as "
        "multipart/form-data, with the boundary that Content-Type names."
    )


_PATH_OF_GALLERY = re.compile("/v1/galleries(?:/[^/]+)?(?:/(.+))?")
_OF_BATCHES = frozenset({"items", "search/batch", "review/import"})
_OF_VECTORS = frozenset({"search/vector", "decide"})
_OF_FEEDBACK = frozenset({"feedback", "review/leases"})
_OF_LARGE_DOCUMENTS = _OF_VECTORS | {"review/import"}
"""Routes of a gallery, by what their bodies hold."""

_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

_DATA_URI = re.compile(r"data:[\w.+/;=-]{0,200};base64,", re.ASCII)

PIECE = 2**20
"""Number of base64 characters in one decoding step; a multiple of four."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """The size limit of a request body.

    Attributes
    ----------
    n_bytes : maximum bytes of the encoded content, without boundaries and other fields.
    held : noun that names the content in the error message.
    n_bytes_held : the limit that the error message states, in bytes.
    """

    n_bytes: int
    held: str
    n_bytes_held: int

    @property
    def most(self) -> int:
        """Maximum size of the whole body in bytes, with boundaries and other fields."""
        return self.n_bytes + limits.FORM_ALLOWANCE

    def refusal(self, n_bytes: int) -> ImageTooLarge:
        """Return the error of a body that exceeds the limit with ``n_bytes`` bytes or more."""
        return ImageTooLarge(
            f"The request has {n_bytes:,} bytes or more; {self.held} may have at most "
            f"{self.n_bytes_held:,}. Send fewer bytes, such as smaller images."
        )


class BoundedBodies:
    """Receives request bodies; limits the size of each body, and the memory of all bodies together.

    A body stays in memory until its request is answered, and a slow client could hold this memory
    for long. Therefore the service reads a large body only when there is memory for the whole body.
    Callers take turns, and one caller gets at most half of this memory.

    Parameters
    ----------
    least_rate : minimum average upload rate in bytes per second, after `UPLOAD_GRACE_S`. The
        average is over the time in which the service waits for the client.
    """

    def __init__(self, max_image_bytes: int, max_batch_bytes: int, least_rate: float = 1.0) -> None:
        self.least_rate = least_rate
        self.room = FairShare(limits.HELD_BODIES_BYTES, limits.HELD_BODIES_BYTES // 2)
        image, vectors, text = max_image_bytes, limits.MAX_VECTOR_BYTES, limits.MAX_TEXT_BYTES
        small = limits.FORM_ALLOWANCE
        self._of_image = _Bound(image, "an image", image)
        self._of_routes = {
            **dict.fromkeys(_OF_BATCHES, _Bound(max_batch_bytes, "a batch", max_batch_bytes)),
            **dict.fromkeys(_OF_VECTORS, _Bound(vectors, "a document of vectors", vectors)),
            **dict.fromkeys(_OF_FEEDBACK, _Bound(0, "feedback", small)),
            **dict.fromkeys(("", "rename"), _Bound(0, "the description of a gallery", small)),
            "search/text": _Bound(text, "a document with a text", text),
            "search/json": _Bound(4 * -(-image // 3), "an image", image),
        }

    def begin(self, scope: Scope, receive: Receive) -> BoundedBody:
        """Return the body of a request, which the caller must end.

        Raises
        ------
        ImageTooLarge : the declared size is too large.
        """
        route = _route_of(scope["path"])
        bound = self._of_image if route is None else self._of_routes.get(route, self._of_image)
        n_bytes = 0
        for name, value in scope["headers"]:
            if name == b"content-length":
                n_bytes = int(value) if value.isdigit() else 0
                break
        if n_bytes > bound.most:
            raise bound.refusal(n_bytes)
        return BoundedBody(self, bound, n_bytes or bound.most, receive)


class BoundedBody:
    """The body of one request; see `BoundedBodies`.

    Parameters
    ----------
    n_places : memory in bytes that a large body occupies.
    receive : the ASGI function of the server.
    """

    def __init__(
        self, bodies: BoundedBodies, bound: _Bound, n_places: int, receive: Receive
    ) -> None:
        self._bodies, self._bound, self._n_places = bodies, bound, n_places
        self._receive = receive
        self._received = 0
        self._who: str | None = None
        self._waited_s, self._is_whole = 0.0, False

    async def receive(self) -> Message:
        """Receive the next piece, as an ASGI ``receive`` function.

        Raises
        ------
        ImageTooLarge : the received size is too large.
        UploadTooSlow : the average upload rate is below the minimum.
        """
        if self._is_whole:
            return await self._receive()
        rate = self._bodies.least_rate
        began = time.monotonic()
        allowed_s = limits.UPLOAD_GRACE_S + self._received / rate
        try:
            async with asyncio.timeout(allowed_s - self._waited_s):
                message = await self._receive()
        except TimeoutError as error:
            raise UploadTooSlow(
                f"The upload is too slow: {self._received:,} bytes in {allowed_s:.0f} s. The "
                f"minimum is {rate:,.0f} bytes per second. Send a smaller image or use a "
                "faster network."
            ) from error
        self._waited_s += time.monotonic() - began
        self._is_whole = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._bound.most:
            raise self._bound.refusal(self._received)
        if self._who is None and self._received > limits.SMALL_BODY_BYTES:
            self._who = await self._bodies.room.enter(self._n_places)
        return message

    def end(self) -> None:
        """Release the memory of the body."""
        if self._who is not None:
            self._bodies.room.leave(self._who, self._n_places)
            self._who = None


def _route_of(path: str) -> str | None:
    """Return the part of a path that follows the name of a gallery; None for other paths."""
    found = _PATH_OF_GALLERY.fullmatch(path)
    return None if found is None else found[1] or ""


class BoundedRequest(Request):
    """A request that refuses forms in encodings other than UTF-8, and JSON with too many elements.

    Starlette decodes a form with the Python codec that the Content-Type names. Some codecs need
    half a minute for a megabyte. A JSON document that consists of brackets needs fifty times its
    size in memory. All forms are multipart: `service.http.routing.body_of` refuses other forms.
    """

    _fields: FormData | None = None
    _document: bytes | None = None

    async def form(self, **_: object) -> FormData:  # type: ignore[override] # FastAPI awaits it
        """Return the fields of a multipart form; no fields for any other body.

        After an error, nothing of the form stays in memory.

        Raises
        ------
        InvalidForm : the form is malformed, has too many parts, or lacks its closing boundary.
        UnsupportedMediaType : a part is encoded, or declares an encoding other than UTF-8.
        """
        if self._fields is None:
            content_type = self.headers.get("content-type", "")
            check_charset(content_type)
            form, self._fields = _Form(), FormData()
            if content_type.partition(";")[0].strip().lower() == "multipart/form-data":
                try:
                    async with aclosing(self.stream()) as pieces:
                        await form.read(content_type, pieces)
                except BaseException:
                    form.drop()
                    raise
            self._fields = FormData(form.items)
        return self._fields

    def leave_out(self, names: Container[str]) -> None:
        """Leave the empty fields with one of the ``names`` out of the form, as missing fields."""
        assert self._fields is not None  # noqa: S101 - the form has been read
        sent = self._fields.multi_items()
        kept = [(name, value) for name, value in sent if name not in names or not is_empty(value)]
        if len(kept) < len(sent):
            self._fields = FormData(kept)

    async def body(self) -> bytes:
        """Return the body; refuse a JSON document with too many elements."""
        if self._document is not None:
            return self._document
        document = await super().body()
        if "json" in self.headers.get("content-type", ""):
            path = self.scope["path"].removeprefix(self.scope.get("root_path", ""))
            is_large = _route_of(path) in _OF_LARGE_DOCUMENTS
            most = limits.MAX_LARGE_JSON_PARTS if is_large else limits.MAX_JSON_PARTS
            if not await _computed(document, partial(_has_at_most, most, document)):
                raise InvalidRequest(
                    f"The document has more than {most:,} parts. Send only the fields that /docs "
                    "lists, in several requests if these are too many."
                )
        self._document = document
        return document

    async def json(self) -> Any:  # noqa: ANN401 - as `Request` has it
        """Return the parsed JSON document; a thread parses large documents."""
        body = await self.body()
        try:
            return await _computed(body, partial(read_json, body))
        except UnfitJson as error:
            raise InvalidRequest(f"The document {error}") from None
        except UnicodeDecodeError:
            raise InvalidRequest("The document is not text in UTF-8. Send UTF-8.") from None
        except json.JSONDecodeError as error:
            raise InvalidRequest(f"The document is not JSON: {error}. Send JSON.") from None


async def _computed(document: bytes, work: Callable[[], ResultT]) -> ResultT:
    """Return the result of ``work`` on a document; a thread does the work on large documents."""
    return work() if len(document) <= limits.AT_ONCE_BYTES else await asyncio.to_thread(work)


def _has_at_most(most: int, document: bytes) -> bool:
    """Return whether a JSON document has at most ``most`` parts; see `limits.MAX_JSON_PARTS`."""
    if _n_parts(document) <= most:  # the usual case, whatever the strings hold
        return True
    # A valid document has at most one string more than it has parts: a longer search is in vain.
    rest, n_strings = _JSON_STRING.subn(b"", document, most + 2)
    return n_strings <= most + 1 and _n_parts(rest) <= most


def _n_parts(document: bytes) -> int:
    return sum(map(document.count, (b"[", b"{", b",", b":")))


def is_empty(value: UploadFile | str) -> bool:
    """Return whether a form field is empty. An empty field is treated as a missing field."""
    if isinstance(value, str):
        return value == ""
    return value.filename == "" and value.size == 0  # browsers send this if no file is chosen


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
            "Use a smaller or more compressed image."
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
