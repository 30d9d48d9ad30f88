"""Limits on the CPU time and memory for parsing a request body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.datastructures import FormData

from model_store.errors import InvalidRequest
from model_store.gallery.filters.grammar import RepeatedName, read_json
from service.access.access import GuardedRoute
from service.http import limits
from service.http.forms import check_charset, read_form
from service.http.understood import UnderstoodRoute


class BoundedRequest(Request):
    """A request that refuses forms in encodings other than UTF-8, and JSON with too many elements.

    Starlette decodes a form with the Python codec that the Content-Type names. Some codecs need
    half a minute for a megabyte. A JSON document that consists of brackets needs fifty times its
    size in memory. All forms are multipart: `service.http.bodies.body_of` refuses other forms.
    """

    _fields: FormData | None = None
    _document: bytes | None = None

    async def form(self, **_: object) -> FormData:  # type: ignore[override] # FastAPI awaits it
        """Return the fields of a multipart form; no fields for any other body."""
        content_type = self.headers.get("content-type", "")
        check_charset(content_type)
        if self._fields is None:
            is_multipart = content_type.partition(";")[0].strip().lower() == "multipart/form-data"
            self._fields = FormData()
            if is_multipart:
                async with aclosing(self.stream()) as pieces:
                    self._fields = await read_form(content_type, pieces)
        return self._fields

    async def body(self) -> bytes:
        """Return the body; refuse a JSON document with too many elements while it arrives."""
        if self._document is not None:
            return self._document
        is_document = "json" in self.headers.get("content-type", "")
        parts = _Parts(limits.MAX_JSON_NUMBERS if self._holds_vectors else 0)
        chunks: list[bytes] = []
        try:
            async for chunk in self.stream():
                chunks.append(chunk)
                if is_document:
                    parts.add(chunk)
            self._document = b"".join(chunks)
        finally:
            # After an error, FastAPI keeps this frame in a reference cycle. Emptying these names
            # frees the body before the garbage collector runs.
            chunks.clear()
            chunk = b""
        return self._document

    @property
    def _holds_vectors(self) -> bool:
        """True for a path whose documents contain vectors."""
        return self.url.path.endswith(limits.VECTOR_PATHS)

    async def json(self) -> Any:  # noqa: ANN401 - as `Request` has it
        """Return the parsed JSON document; a thread parses large documents."""
        body = await self.body()
        try:
            if len(body) <= limits.AT_ONCE_BYTES:
                return read_json(body)
            return await asyncio.to_thread(read_json, body)
        except RepeatedName as error:
            raise InvalidRequest(f"The document {error}") from None


class _Parts:
    """Counts the brackets, commas and colons of a JSON document while it arrives.

    Parameters
    ----------
    n_free : number of commas that do not count, because they separate the numbers of vectors.
    """

    def __init__(self, n_free: int) -> None:
        self._n_free = n_free
        self._n_structure = self._n_commas = 0

    def add(self, piece: bytes) -> None:
        """Count the elements in the next piece of the document.

        Raises
        ------
        InvalidRequest : the document has too many elements.
        """
        self._n_structure += sum(map(piece.count, (b"[", b"{", b":")))
        self._n_commas += piece.count(b",")
        if self._n_structure + max(0, self._n_commas - self._n_free) > limits.MAX_JSON_PARTS:
            raise InvalidRequest(
                f"The document has more than {limits.MAX_JSON_PARTS:,} parts. Send only the fields "
                "that /docs lists."
            )


class BoundedRoute(GuardedRoute, UnderstoodRoute):
    """A route with access control that limits its requests and refuses unknown parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


class DirectRoute(APIRoute):
    """A fast route: its endpoint takes the request and path parameters, and returns a model.

    FastAPI would resolve the endpoint's arguments by their annotations, and validate the answer
    again. These two steps are a tenth of the work of a search on the event loop.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, which sends the same bytes as FastAPI's own handler."""
        endpoint, model = self.endpoint, TypeAdapter[Any](self.response_model)

        async def direct(request: Request) -> Response:
            answer = await endpoint(request, **request.path_params)
            return Response(model.dump_json(answer, by_alias=True), media_type="application/json")

        return direct


class BoundedDirectRoute(BoundedRoute, DirectRoute):
    """A `DirectRoute` with the checks of `BoundedRoute`."""
