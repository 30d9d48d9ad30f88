"""Requests whose reading costs no more than their size suggests."""

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
    """A request that refuses forms in other encodings, and JSON with very many elements.

    Starlette would decode a form's text with any Python codec in its Content-Type; some codecs need
    half a minute for a megabyte. A JSON document of brackets alone needs fifty times its size in
    memory. Every form that is read is multipart: `service.http.bodies.body_of` refuses others.
    """

    _fields: FormData | None = None
    _document: bytes | None = None

    async def form(self, **_: object) -> FormData:  # type: ignore[override] # FastAPI awaits it
        """Return the form; a body that is not a form has no fields."""
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
        """Return the body; reading stops if a document has too many elements."""
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
            # FastAPI keeps an error, and by its traceback this frame, in a cycle: until garbage is
            # collected, all that was sent by those who left would be held.
            chunks.clear()
            chunk = b""
        return self._document

    @property
    def _holds_vectors(self) -> bool:
        """True for a path that takes vectors."""
        return self.url.path.endswith(limits.VECTOR_PATHS)

    async def json(self) -> Any:  # noqa: ANN401 - as `Request` has it
        """Return the JSON document; a large one is parsed in a thread."""
        body = await self.body()
        try:
            if len(body) <= limits.AT_ONCE_BYTES:
                return read_json(body)
            return await asyncio.to_thread(read_json, body)
        except RepeatedName as error:
            raise InvalidRequest(f"The document {error}") from None


class _Parts:
    """Counts the brackets, commas and colons of a document while it arrives.

    Parameters
    ----------
    n_free : number of commas that are not counted.
    """

    def __init__(self, n_free: int) -> None:
        self._n_free = n_free
        self._n_structure = self._n_commas = 0

    def add(self, piece: bytes) -> None:
        """Count the elements of the next piece.

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
    """A route whose endpoint takes the request and its path parameters, and returns a model.

    FastAPI would resolve the endpoint's arguments by their annotations and validate the answer
    again, which takes a tenth of the event loop's time for a search.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, which writes the same bytes as FastAPI's."""
        endpoint, model = self.endpoint, TypeAdapter[Any](self.response_model)

        async def direct(request: Request) -> Response:
            answer = await endpoint(request, **request.path_params)
            return Response(model.dump_json(answer, by_alias=True), media_type="application/json")

        return direct


class BoundedDirectRoute(BoundedRoute, DirectRoute):
    """A guarded route whose requests are bounded, and whose endpoint reads them itself."""
