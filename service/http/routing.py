"""The classes of routes, which check a request before their endpoint is called.

If a part of a request were ignored, the answer would be wrong. A search with a misspelt or
misplaced filter would return the items of all tenants. If the address of a write decoded to another
item's address, the write would overwrite the other item. Each route declares its parameters. Other
parameters are refused here, after authentication and before any work, in an error that names them.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, NamedTuple, TypeVar, get_args, get_origin
from urllib.parse import unquote, unquote_to_bytes

from fastapi import FastAPI, Request, Response, params
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from model_store.errors import InvalidHead, UnsupportedMediaType
from service.access.access import GuardedRoute
from service.http.bodies import BoundedRequest, check_charset, is_empty
from service.schemas.base import is_number, suggestion

MULTIPART = "multipart/form-data"
JSON = "application/json"
RAW = ("application/octet-stream", "image/*")

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")

_PLAIN_CODINGS = {"", "identity", "chunked"}

_UNREAD_OF_WRITES = (
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "content-range",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
)
"""Headers that would make a write conditional or change its method; they are refused."""

_ONCE = ("idempotency-key", "content-type", "authorization", "x-api-key")
"""Headers that may be sent only once, because servers use different values of a repeated header."""

_CHECKED_HEADERS = {
    name.encode() for name in ("content-encoding", "transfer-encoding", *_UNREAD_OF_WRITES)
}

_NO_OPTIONS = (b"", b"{}", b"null")
"""Bodies that count as empty, because some clients send them with every request."""

_MOST_OF_NO_OPTIONS = 64


class _Option(NamedTuple):
    """An option of a route.

    Attributes
    ----------
    repeats : whether the option may be sent several times.
    is_number : whether the option is a number.
    """

    repeats: bool
    is_number: bool


Options = Mapping[str, _Option]
"""Options by name."""

Error = dict[str, Any]

ModelT = TypeVar("ModelT", bound=BaseModel)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class CheckedRoute(GuardedRoute):
    """A route that checks the caller, limits the body, and refuses unknown parameters and bodies.

    A route knows the parameters and the body that it declares for FastAPI and OpenAPI.
    """

    def get_route_handler(self) -> Handler:
        """Return a handler that checks the request before it calls the route's handler."""
        handle = self.unchecked_handler()
        in_address = dict(_options_in_address(self.dependant))
        in_body = dict(_options_in_body(self))
        body = self.body_field
        single = {name for name, one in in_body.items() if not one.repeats}
        of_form = body is not None and isinstance(body.field_info, params.Form)
        has_body = body is not None or "requestBody" in (self.openapi_extra or {})

        async def checked(request: Request) -> Response:
            if not isinstance(request, BoundedRequest):
                request = BoundedRequest(request.scope, request.receive)
            await self.check_caller(request)
            _check_address(self, request)
            _check_headers(request)
            if request.scope.get("query_string"):
                sent = request.query_params.multi_items()
                errors = list(_errors(sent, in_address, in_body, "query"))
                if errors:
                    raise RequestValidationError(errors)
            if not of_form:
                if not has_body:
                    await _check_no_body(request)
                return await handle(request)
            form = await request.form()
            try:
                if _check_form(form, in_body, in_address):
                    request.leave_out(single)
                return await handle(request)
            finally:
                await form.close()

        return checked

    def unchecked_handler(self) -> Handler:
        """Return FastAPI's handler of the route."""
        return APIRoute.get_route_handler(self)


class DirectRoute(CheckedRoute):
    """A fast route: its endpoint takes the request and path parameters, and returns a model.

    FastAPI would resolve the endpoint's arguments by their annotations, and validate the answer
    again. These two steps are a tenth of the work of a search on the event loop. A further tenth
    are FastAPI's own layers around its routes, see `Routes`.
    """

    def __init__(self, *given: Any, **options: Any) -> None:  # noqa: ANN401 - as `APIRoute` takes them
        super().__init__(*given, **options)
        handle = self.get_route_handler()

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            response = await handle(BoundedRequest(scope, receive))
            await response(scope, receive, send)

        # Without FastAPI's exit stacks, which only its own handlers use.
        self.app = respond

    def unchecked_handler(self) -> Handler:
        """Return the route's handler, which sends the same bytes as FastAPI's own handler."""
        endpoint, model = self.endpoint, TypeAdapter[Any](self.response_model)

        async def direct(request: Request) -> Response:
            answer = await endpoint(request, **request.path_params)
            return Response(model.dump_json(answer, by_alias=True), media_type="application/json")

        return direct


class Routes:
    """The innermost layer: passes each request to its route.

    Adds the root path to ``path``, as ASGI requires. Compresses the responses to GET for clients
    that accept gzip, except pictures and archives. Searches (POST) are not compressed: their
    latency is more important than their size. A `DirectRoute` is called without FastAPI's layers,
    except the layer that converts errors to problem documents.
    """

    def __init__(self, api: FastAPI) -> None:
        self._api = api
        self._compressed = GZipMiddleware(api, compresslevel=6)
        handlers = {
            kind: handler
            for kind, handler in api.exception_handlers.items()
            if kind is not Exception
        }
        self._direct = [
            (route, ExceptionMiddleware(route.app, handlers))
            for route in api.routes
            if isinstance(route, DirectRoute)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        app: ASGIApp = self._api
        if scope["type"] == "http":
            scope["path"] = scope.get("root_path", "") + scope["path"]
            if scope["method"] == "GET":
                app = self._compressed
            elif scope["method"] == "POST":
                for route, direct in self._direct:
                    match, found = route.matches(scope)
                    if match is Match.FULL:
                        scope.update(found, app=self._api)
                        app = direct
                        break
        await app(scope, receive, send)


def _check_address(route: APIRoute, request: Request) -> None:
    """Refuse an address that has the same text after decoding as another address.

    Servers replace invalid UTF-8, keep a bare `%`, and decode `%2F` to a slash. Without this check,
    several addresses would name the same item, or its picture.

    Raises
    ------
    InvalidHead
    """
    scope = request.scope
    for name, sent in (
        ("path", scope.get("raw_path") or b""),
        ("query string", scope.get("query_string", b"")),
    ):
        if b"%" not in sent and sent.isascii():  # the usual case
            continue
        escape = _BAD_ESCAPE.search(sent)
        if escape is not None:
            raise InvalidHead(
                f"The {name} has a % without two hexadecimal digits after it, at "
                f"{_shown(sent, escape.start())}. Write %25 for the character %."
            )
        try:
            unquote_to_bytes(sent).decode()
        except UnicodeDecodeError:
            raise InvalidHead(
                f"The {name} is not valid UTF-8 after percent-decoding: "
                f"{_shown(sent, 0)}. Encode text as UTF-8 before percent-encoding."
            ) from None
        if name == "path" and not _has_parts_of(route, request, sent):
            raise InvalidHead(
                f"The path {_shown(sent, 0)} has an encoded slash (%2F) or another encoded "
                "character outside its names. Percent-encode only the names in the path."
            )


def _has_parts_of(route: APIRoute, request: Request, sent: bytes) -> bool:
    """Return whether the parts of a path are the same before and after percent-decoding."""
    path = sent.partition(b"?")[0].decode().removeprefix(request.scope.get("root_path", ""))
    found = route.path_regex.match(path)
    return found is not None and {
        name: unquote(part) for name, part in found.groupdict().items()
    } == {name: str(value) for name, value in request.path_params.items()}


def _check_headers(request: Request) -> None:
    """Refuse an encoded body, a repeated header, and a write with conditional headers.

    Raises
    ------
    UnsupportedMediaType, RequestValidationError
    """
    headers = request.headers
    names = [name for name, _ in headers.raw]
    if len({*names}) == len(names) and _CHECKED_HEADERS.isdisjoint(names):  # the usual case
        return
    sent = Counter(name.decode("latin-1") for name in names)
    for name in ("content-encoding", "transfer-encoding"):
        unread = name in sent and _codings(headers, name) - _PLAIN_CODINGS
        if unread:
            raise UnsupportedMediaType(
                f"The body is encoded as {', '.join(sorted(unread))[:100]!r} ({name.title()}), "
                "which the service does not decode. Send the body unencoded, without that header."
            )
    repeated = [name for name in _ONCE if sent[name] > 1]
    if repeated:
        raise RequestValidationError(
            [_error("header", name, "was sent several times; send it once") for name in repeated]
        )
    if request.method == "GET":
        return
    unread_headers = [name for name in _UNREAD_OF_WRITES if name in sent]
    if unread_headers:
        raise RequestValidationError(
            [
                _error("header", name, "is not supported, and nothing was done; omit it")
                for name in unread_headers
            ]
        )


def _codings(headers: Headers, name: str) -> set[str]:
    values = ",".join(headers.getlist(name))
    return {coding.strip().lower() for coding in values.split(",")}


def _shown(sent: bytes, start: int) -> str:
    return repr(sent[start : start + 40].decode("ascii", "backslashreplace"))


def _check_form(form: FormData, in_body: Options, in_address: Options) -> bool:
    """Refuse a form with an unknown field, or with a field that is sent too often.

    Returns whether a field of the form is empty.

    Raises
    ------
    RequestValidationError
    """
    fields = form.multi_items()
    sent = [(name, value) for name, value in fields if not is_empty(value)]
    errors = list(_errors(sent, in_body, in_address, "body"))
    if ("filter", "") in fields:
        # Probably an unset variable of a script. A search without a filter would return all items.
        errors.append(_error("body", "filter", "is empty; leave it out to search all items"))
    if errors:
        raise RequestValidationError(errors)
    return len(sent) < len(fields)


async def _check_no_body(request: Request) -> None:
    """Refuse a body if the route reads none.

    Raises
    ------
    RequestValidationError
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_OF_NO_OPTIONS:
            break
    if body.strip() not in _NO_OPTIONS:
        text = "this path takes no body; send options as /docs lists them"
        raise RequestValidationError([{"type": "not_understood", "loc": ("body",), "msg": text}])


def _errors(
    sent: Iterable[tuple[str, object]], known: Options, elsewhere: Options, place: str
) -> Iterator[Error]:
    """Yield an error for each unknown or repeated name, and for each number with an underscore.

    Parameters
    ----------
    known : names that the route reads in ``place``, a part of the request.
    elsewhere : names that the route reads in the other part of the request, for a hint in the
        error.
    """
    counts: dict[str, int] = {}
    for name, value in sent:
        counts[name] = counts.get(name, 0) + 1
        # Python reads "2_0" as 20.
        if name in known and known[name].is_number and isinstance(value, str) and "_" in value:
            yield _error(place, name, "should be a number without underscores")
    for name, n in counts.items():
        if name not in known:
            other = "body" if place == "query" else "address"
            read = f"is read from the {other} here" if name in elsewhere else None
            yield _error(place, name, read or f"is not read here; {suggestion(name, known)}")
        elif n > 1 and not known[name].repeats:
            yield _error(place, name, f"is sent {n} times; send it once")


def _error(place: str, name: str, text: str) -> Error:
    return {"type": "not_understood", "loc": (place, name[:100]), "msg": text}


def _options_in_address(dependant: Dependant) -> Iterator[tuple[str, _Option]]:
    """Yield the options that a route reads from the query string."""
    for field in dependant.query_params:
        yield from _options(field.alias, field.field_info)
    for other in dependant.dependencies:
        yield from _options_in_address(other)


def _options_in_body(route: APIRoute) -> Iterator[tuple[str, _Option]]:
    """Yield the fields that a route reads from a form or a JSON document."""
    if route.body_field is not None:
        yield from _options(route.body_field.alias, route.body_field.field_info)


def _options(alias: str, field: FieldInfo) -> Iterator[tuple[str, _Option]]:
    """Yield an option, or each option of a pydantic model."""
    kind: Any = field.annotation
    if _is_subclass(kind, BaseModel):
        for name, one in kind.model_fields.items():
            yield from _options(one.alias or name, one)
    else:  # only a list of files is sent as several fields; a list of objects is one JSON text
        repeats = get_origin(kind) is list and _is_subclass(get_args(kind)[0], UploadFile)
        yield alias, _Option(repeats, is_number(kind))


def _is_subclass(kind: Any, base: type) -> bool:  # noqa: ANN401 - an annotation
    """Return whether an annotation is a class below ``base``; `list[int]` is no class."""
    return inspect.isclass(kind) and issubclass(kind, base)


def body_of(*accepted: str, required: bool = True) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that refuses media types other than ``accepted``.

    Parameters
    ----------
    accepted : media types; ``image/*`` accepts all image types.
    required : whether a request without a Content-Type is refused.
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
                f"{' or '.join(accepted)}. Set the header Content-Type, or choose the path for "
                "this type in /docs."
            )

    return check


_check_media_type = body_of(MULTIPART)


async def form_of(request: Request, model: type[ModelT]) -> ModelT:
    """Read the form of a request as ``model``; the `CheckedRoute` closes the form's files.

    As in FastAPI, an empty field is treated as a missing field. FastAPI's own reader inspects the
    model's annotations for each request, a quarter of the work of a search on the event loop.

    Raises
    ------
    UnsupportedMediaType : the Content-Type is not ``multipart/form-data``.
    RequestValidationError : a field is missing or invalid.
    InvalidForm : the form is incomplete or malformed.
    """
    await _check_media_type(request)
    return validated(model, dict((await request.form()).multi_items()), "body")


def validated(model: type[ModelT], sent: Mapping[str, object], place: str) -> ModelT:
    """Validate the values that were sent, and return them as ``model``.

    Parameters
    ----------
    place : part of the request with the values, for error messages: ``query`` or ``body``.

    Raises
    ------
    RequestValidationError : a value is missing or invalid.
    """
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError(
            [{**entry, "loc": (place, *entry["loc"])} for entry in errors]
        ) from None
