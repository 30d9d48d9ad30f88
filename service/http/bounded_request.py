"""Requests whose bodies cost no more to read than their size suggests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from model_store.errors import InvalidForm, InvalidRequest, UnsupportedMediaType
from model_store.gallery.filters.grammar import RepeatedName, read_json
from service.access.access import GuardedRoute
from service.http import limits
from service.http.understood import UnderstoodRoute

_UTF_8 = frozenset({b"utf-8", b"utf8", b"us-ascii"})

_LIKE_ASCII = frozenset({b"iso-8859-1", b"iso-8859-15", b"windows-1252"})
"""Encodings in which ASCII is itself."""

_PLAIN_ENCODINGS = {
    "content-transfer-encoding": ("7bit", "8bit", "binary"),
    "content-encoding": ("identity",),
}
"""Headers of a part, and their values that leave its content as it is."""


class BoundedRequest(Request):
    """A request that refuses forms in other encodings, and documents of very many parts.

    A form's text would be decoded with whatever codec of Python its Content-Type names; some take
    half a minute for a megabyte. A document of nothing but brackets takes fifty times its size.
    Every form that is read is multipart: `service.http.bodies.body_of` refuses others.
    """

    async def _get_form(self, **_: float) -> FormData:
        """Parse the form; of a body that is none there are no fields."""
        content_type = self.headers.get("content-type", "")
        check_charset(content_type)
        if self._form is None:
            is_multipart = content_type.partition(";")[0].strip().lower() == "multipart/form-data"
            self._form = await self._parse_form() if is_multipart else FormData()
        return self._form

    async def _parse_form(self) -> FormData:
        try:
            async with aclosing(self.stream()) as pieces:
                return await _FormParser(self.headers, pieces).parse()
        except MultiPartException as error:
            raise InvalidForm(
                f"The form cannot be read: {error.message.rstrip('.')}. Nothing was done. Send it "
                "whole, as multipart/form-data with the boundary that Content-Type names."
            ) from error

    async def body(self) -> bytes:
        """The body; that of a document is given up where it has too many parts."""
        if hasattr(self, "_body"):
            return self._body
        is_document = "json" in self.headers.get("content-type", "")
        parts = _Parts(limits.MAX_JSON_NUMBERS if self._holds_vectors else 0)
        chunks: list[bytes] = []
        try:
            async for chunk in self.stream():
                chunks.append(chunk)
                if is_document:
                    parts.add(chunk)
            self._body = b"".join(chunks)
        finally:
            # FastAPI keeps an error, and by its traceback this frame, in a cycle: until garbage is
            # collected, all that was sent by those who left would be held.
            chunks.clear()
            chunk = b""
        return self._body

    @property
    def _holds_vectors(self) -> bool:
        """True for a path that takes vectors."""
        return self.url.path.endswith(limits.VECTOR_PATHS)

    async def json(self) -> Any:  # noqa: ANN401 - as `Request` has it
        """The document; a large one is not read while everybody else waits."""
        body = await self.body()
        try:
            if len(body) <= limits.AT_ONCE_BYTES:
                return read_json(body)
            return await asyncio.to_thread(read_json, body)
        except RepeatedName as error:
            raise InvalidRequest(f"The document {error}") from None


class _FormParser(MultiPartParser):
    """Keeps files in memory, where there is room for them: see `BoundedBodies`.

    Starlette would write what is larger than a megabyte to the disk, in threads, piece by piece.
    """

    spool_max_size = 0  # no limit

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None]) -> None:
        super().__init__(
            headers,
            self._up_to_the_end(stream),
            max_files=limits.MAX_FILES,
            max_fields=limits.MAX_FIELDS,
            max_part_size=limits.MAX_FIELD_BYTES,
        )
        self._pieces: list[bytes] = []
        self._is_whole = False

    async def parse(self) -> FormData:
        """Parse the form, and hold on to nothing of one that ends before its end."""
        try:
            return await super().parse()
        finally:
            self._pieces.clear()

    async def _up_to_the_end(
        self, pieces: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Pass on the pieces of a form, and refuse one that does not end with its last boundary.

        The parser takes the fields before a cut for all of them, and drops what comes after the
        boundary.
        """
        boundary = parse_options_header(self.headers["content-type"])[1].get(b"boundary", b"")
        closing, before = b"--" + boundary + b"--", b""
        async for piece in pieces:
            had_ended = self._is_whole
            yield piece  # the parser has read it when it asks for the next one
            if self._is_whole:
                after = piece if had_ended else (before + piece).partition(closing)[2]
                if after.strip():
                    raise MultiPartException("it goes on after its closing boundary")
            enough = len(piece) >= len(closing)
            before = (piece if enough else before + piece)[-len(closing) :]
        if not self._is_whole:
            raise MultiPartException("it ends before its closing boundary")

    def on_end(self) -> None:
        """Note that the closing boundary has come."""
        self._is_whole = True

    def on_headers_finished(self) -> None:
        """Refuse a part whose content would have to be decoded."""
        super().on_headers_finished()
        part = Headers(raw=self._current_part.item_headers)
        for name, plain in _PLAIN_ENCODINGS.items():
            encoding = part.get(name, "").strip().lower()
            if encoding and encoding not in plain:
                raise UnsupportedMediaType(
                    f"The part {self._current_part.field_name[:100]!r} is encoded as "
                    f"{encoding[:40]!r} ({name.title()}), which is not decoded here. Send its "
                    "bytes as they are."
                )

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Keep a piece of a part."""
        if self._current_part.file is None:
            super().on_part_data(data, start, end)
        else:
            self._pieces.append(data[start:end])

    def on_part_end(self) -> None:
        """Join the pieces of a file: one that grew by them would be copied again and again."""
        upload = self._current_part.file
        if upload is not None:
            content = b"".join(self._pieces)
            self._pieces.clear()
            upload.size = upload.file.write(content)
        else:
            self._check_text()
        super().on_part_end()

    def _check_text(self) -> None:
        """Refuse the text of a field that is not UTF-8; Starlette would take it for Latin-1.

        Raises
        ------
        UnsupportedMediaType : it is declared to be in another encoding.
        MultiPartException : it is not what it is declared to be.
        """
        part = self._current_part
        # Of ASCII nearly all encodings make the same bytes; clients in Java name one of them.
        allowed = _UTF_8 | _LIKE_ASCII if part.data.isascii() else _UTF_8
        check_charset(Headers(raw=part.item_headers).get("content-type", ""), allowed)
        try:
            part.data.decode()
        except UnicodeDecodeError:
            raise MultiPartException(
                f"its field {part.field_name[:100]!r} is not text in UTF-8; a file needs a file "
                'name (filename="…" in its Content-Disposition)'
            ) from None


class _Parts:
    """The brackets, commas and colons of a document, counted as it comes.

    Parameters
    ----------
    n_free : commas that do not count.
    """

    def __init__(self, n_free: int) -> None:
        self._n_free = n_free
        self._n_structure = self._n_commas = 0

    def add(self, piece: bytes) -> None:
        """Count those of the next piece.

        Raises
        ------
        InvalidRequest : there are too many.
        """
        self._n_structure += sum(map(piece.count, (b"[", b"{", b":")))
        self._n_commas += piece.count(b",")
        if self._n_structure + max(0, self._n_commas - self._n_free) > limits.MAX_JSON_PARTS:
            raise InvalidRequest(
                f"The document has more than {limits.MAX_JSON_PARTS:,} parts. Send the options "
                "that /docs lists, and nothing else."
            )


class BoundedRoute(GuardedRoute, UnderstoodRoute):
    """A guarded route whose requests are bounded, and understood or refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request and what its path names, and returns a model.

    FastAPI would look for the endpoint's arguments by their annotations, and check the model once
    more before it is written: a tenth of what the event loop computes for a search.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route, which writes the same bytes."""
        endpoint, model = self.endpoint, TypeAdapter[Any](self.response_model)

        async def direct(request: Request) -> Response:
            answer = await endpoint(request, **request.path_params)
            return Response(model.dump_json(answer, by_alias=True), media_type="application/json")

        return direct


class BoundedDirectRoute(BoundedRoute, DirectRoute):
    """A guarded route whose requests are bounded, and whose endpoint reads them itself."""


def check_charset(content_type: str, allowed: frozenset[bytes] = _UTF_8) -> None:
    """Refuse a body, or a part of a form, whose text is not in one of the ``allowed`` encodings.

    Raises
    ------
    UnsupportedMediaType : it is declared to be in another encoding.
    """
    if "charset" not in content_type.lower():  # as mostly, and then there is nothing to parse
        return
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.lower() not in allowed:
        raise UnsupportedMediaType(
            f"The text is declared to be in {charset[:40].decode('latin-1')!r}; only UTF-8 is "
            "read. Leave the charset out of Content-Type."
        )
