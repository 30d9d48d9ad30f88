"""What the service serves beside answers: the OpenAPI document, and the files of the web page."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Scope

from model_store.errors import (
    DeadlineExceeded,
    EncoderStopped,
    Forbidden,
    GalleryUnavailable,
    InvalidForm,
    InvalidHead,
    InvalidRequest,
    Overloaded,
    RateLimited,
    Unauthenticated,
    UploadTooSlow,
    VouchError,
)
from service.access.access import SECURITY_SCHEMES, Access
from service.access.keys import KeyScope, allows
from service.http.middleware import is_counted
from service.http.problems import MEDIA_TYPE, responses
from service.http.routing import MULTIPART
from service.schemas import Problem

HEAD_TOO_LARGE = {
    "description": "The head of the request is too large.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
"""The answer to a request whose head is too large; the connection sends it before routing."""


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of FastAPI, with corrections.

    All errors are problem documents. FastAPI's validation error is removed, because no path returns
    it. Form fields and query options are never null. Uploads have both ``format`` (OpenAPI 3.0) and
    ``contentMediaType`` (3.1), so that all client generators recognise them. All paths document the
    answers to invalid requests. Paths that need a key also document the answers to requests without
    a key.
    """
    if app.openapi_schema:
        return app.openapi_schema
    found = FastAPI.openapi(app)
    schemas = found["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    found["components"]["securitySchemes"] = SECURITY_SCHEMES
    for path, methods in found["paths"].items():
        for operation in methods.values():
            _only_own_errors(operation["responses"])
            _also(operation["responses"], InvalidHead, InvalidRequest)
            operation["responses"]["431"] = HEAD_TOO_LARGE
            if MULTIPART in operation.get("requestBody", {}).get("content", {}):
                _also(operation["responses"], InvalidForm)
            if is_counted(path):
                _also(operation["responses"], Overloaded, EncoderStopped, DeadlineExceeded)
                if "requestBody" in operation:
                    _also(operation["responses"], UploadTooSlow)
            if "{gallery}" in path:
                _also(operation["responses"], GalleryUnavailable)
            if "security" in operation:
                _say_who_may_ask(operation, app.state.access)
    _type_uploads(found)
    _remove_null_from_text(found)
    return found


def description_route(app: FastAPI, path: str) -> Route:
    """Return the route of the OpenAPI document. The document is cached for each root path.

    FastAPI needs about a second to make the document. So one thread makes it, at the first request,
    while the event loop answers other requests.
    """
    making = asyncio.Lock()

    @lru_cache(maxsize=16)
    def written(root_path: str) -> bytes:
        servers = {"servers": [{"url": root_path}]} if root_path else {}
        return json.dumps({**app.openapi(), **servers}, separators=(",", ":")).encode()

    async def describe(request: Request) -> Response:
        async with making:
            text = await asyncio.to_thread(written, request.scope["root_path"])
        return Response(text, media_type="application/json")

    return Route(path, describe, include_in_schema=False)


def _also(answers: dict[str, Any], *errors: type[VouchError]) -> None:
    """Add ``errors`` to the answers of a path. Errors with one status share one description."""
    for error in errors:
        for status, answer in responses(error).items():
            known = answers.setdefault(str(status), answer)
            if answer["description"] not in known["description"]:
                known["description"] += f" {answer['description']}"


def _type_uploads(node: object) -> None:
    """Mark every upload as binary."""
    if isinstance(node, dict):
        if node.get("contentMediaType") == "application/octet-stream":
            node["format"] = "binary"
        for child in node.values():
            _type_uploads(child)
    elif isinstance(node, list):
        for child in node:
            _type_uploads(child)


def _remove_null_from_text(found: dict[str, Any]) -> None:
    """Remove the type null from form fields and query options, because these are always text."""
    for methods in found["paths"].values():
        for operation in methods.values():
            options = [one["schema"] for one in operation.get("parameters", ())]
            form = operation.get("requestBody", {}).get("content", {}).get(MULTIPART)
            if form is not None:
                name = form["schema"]["$ref"].removeprefix("#/components/schemas/")
                options += found["components"]["schemas"][name]["properties"].values()
            for option in options:
                kinds = [one for one in option.get("anyOf", ()) if one != {"type": "null"}]
                if len(kinds) == 1:
                    del option["anyOf"]
                    option.update(kinds[0])


def _only_own_errors(responses: dict[str, Any]) -> None:
    automatic = "#/components/schemas/HTTPValidationError"
    for status, response in list(responses.items()):
        content = response.get("content", {})
        if content.get("application/json", {}).get("schema", {}).get("$ref") == automatic:
            del responses[status]


def _say_who_may_ask(operation: dict[str, Any], access: Access) -> None:
    alternatives: list[dict[str, list[KeyScope]]] = operation["security"]
    (scope,) = {scope for each in alternatives for named in each.values() for scope in named}
    if access.keyless is not None and allows(access.keyless, scope):
        alternatives.append({})
    refusals = [Unauthenticated, RateLimited]
    if scope != "read":  # which every key has
        refusals.append(Forbidden)
    for status, response in responses(*refusals).items():
        operation["responses"].setdefault(str(status), response)


_UNSEEN = re.compile(
    r"""
    ^[ ]*/\*.*?\*/[ ]*$  # a comment of whole lines
    | ^[ ]*//[^\n]*$
    | ^[ ]+              # indentation
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


_OWN_ADDRESS = re.compile(r'(href|src)="/')


class PageFiles(StaticFiles):
    """Serves the files of a folder, and removes comments from scripts.

    The lines of a script keep their numbers, so that error messages of the browser are correct.
    """

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Return a file, or 304 if the browser has the same file."""
        path = Path(full_path)
        if path.suffix != ".js":
            return super().file_response(path, stat_result, scope, status_code)
        script, tag = _shortened(path, stat_result.st_mtime_ns)
        response = Response(script, status_code, {"ETag": tag}, "text/javascript")
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


def page_response(document: Path, root_path: str, headers: Headers) -> Response:
    """Return the page for ``root_path``, or 304 if the browser has the same page."""
    page, tag = _within(document, document.stat().st_mtime_ns, root_path)
    response = Response(page, 200, {"ETag": tag}, "text/html")
    if _is_known(tag, headers):
        return NotModifiedResponse(response.headers)
    return response


def _is_known(tag: str, headers: Headers) -> bool:
    """Return whether the request names this ETag, so that the browser has the page."""
    known = headers.get("if-none-match", "")
    return tag in [one.strip().removeprefix("W/") for one in known.split(",")]


@lru_cache(maxsize=16)
def _within(document: Path, changed_ns: int, root_path: str) -> tuple[bytes, str]:  # noqa: ARG001 - of the cache
    """Return the page and its ETag. Links get the root path as a prefix."""
    text = document.read_text(encoding="utf-8")
    page = _OWN_ADDRESS.sub(lambda found: f'{found[1]}="{root_path}/', text).encode()
    return page, f'"{hashlib.blake2b(page, digest_size=16).hexdigest()}"'


@lru_cache(maxsize=128)
def _shortened(path: Path, changed_ns: int) -> tuple[bytes, str]:  # noqa: ARG001 - of the cache
    """Return a script without comments and indentation, and the script's ETag.

    Comments can be removed line by line, because no string in the page's scripts spans lines.
    """
    text = path.read_text(encoding="utf-8")
    script = _UNSEEN.sub(lambda found: "\n" * found[0].count("\n"), text).encode()
    return script, f'"{hashlib.blake2b(script, digest_size=16).hexdigest()}"'
