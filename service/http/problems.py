"""Converts every error to a problem document (RFC 9457, ``application/problem+json``)."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from model_store.errors import (
    ActivationRefused,
    BundleError,
    BundleNotFound,
    ChangeUnconfirmed,
    CorruptImage,
    DeadlineExceeded,
    EmptyImage,
    EncoderError,
    EncoderStopped,
    EncodingFailed,
    FeedbackNotKept,
    Forbidden,
    GallerySuperseded,
    GalleryUnavailable,
    IdentitiesUnavailable,
    ImageTooCostly,
    ImageTooLarge,
    InternalError,
    InvalidForm,
    InvalidHead,
    InvalidRequest,
    KeyReused,
    MethodNotAllowed,
    MisdirectedRequest,
    NoEmbedding,
    NotFound,
    NotReady,
    OutdatedCursor,
    Overloaded,
    PathNotFound,
    QuotaExceeded,
    RateLimited,
    SigningKeyError,
    StorageBusy,
    StorageFull,
    Unauthenticated,
    UnsupportedImage,
    UnsupportedMediaType,
    UploadTooSlow,
    VouchError,
    WriteError,
    WriteRefused,
    reason_of,
)
from service.access.hosts import root_path
from service.http import limits
from service.observability.logs import request_record
from service.schemas import FieldError, Problem

logger = logging.getLogger("service.requests")

MEDIA_TYPE = "application/problem+json"

STATUS: dict[type[VouchError], int] = {
    EmptyImage: 400,
    UnsupportedImage: 415,
    UnsupportedMediaType: 415,
    ImageTooLarge: 413,
    ImageTooCostly: 422,
    CorruptImage: 422,
    InvalidHead: 400,
    InvalidForm: 400,
    InvalidRequest: 422,
    Unauthenticated: 401,
    Forbidden: 403,
    MisdirectedRequest: 421,
    QuotaExceeded: 403,
    RateLimited: 429,
    NotFound: 404,
    MethodNotAllowed: 405,
    FeedbackNotKept: 409,
    IdentitiesUnavailable: 409,
    OutdatedCursor: 409,
    EncoderError: 503,
    EncodingFailed: 500,
    NoEmbedding: 422,
    Overloaded: 503,
    NotReady: 503,
    GalleryUnavailable: 503,
    DeadlineExceeded: 504,
    UploadTooSlow: 408,
    ActivationRefused: 409,
    WriteRefused: 409,
    KeyReused: 422,
    StorageFull: 507,
    WriteError: 503,
    BundleNotFound: 404,
    BundleError: 503,
    SigningKeyError: 503,
    VouchError: 500,
}
"""HTTP status of each error class; other classes have the status of their nearest ancestor."""


RETRY_AFTER_S: dict[type[VouchError], int] = {
    Overloaded: 1,
    StorageBusy: 1,
    EncoderStopped: 2,
    GallerySuperseded: 2,
    GalleryUnavailable: 2,
    ChangeUnconfirmed: 2,
    NotReady: 5,
}
"""Seconds before a client should retry after a temporary error (header `Retry-After`)."""


def status_of(error: type[VouchError]) -> int:
    """HTTP status of an error class."""
    return next(STATUS[ancestor] for ancestor in error.__mro__ if ancestor in STATUS)


def problem_response(
    request: Request,
    error: VouchError,
    errors: list[FieldError] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Describe the error."""
    problem = problem_document(request, error, errors)
    record = request_record.get()
    if record is not None:
        record.code = problem.code
        if problem.status >= 500:
            record.reason = reason_of(error)
    if type(error) in RETRY_AFTER_S:
        headers = {**(headers or {}), "Retry-After": str(RETRY_AFTER_S[type(error)])}
    return JSONResponse(
        problem.model_dump(exclude_none=True), problem.status, headers, media_type=MEDIA_TYPE
    )


def problem_document(
    request: Request, error: Exception, errors: list[FieldError] | None = None
) -> Problem:
    """Return the problem document of an error. Details of unexpected errors go to the log only."""
    if not isinstance(error, VouchError):
        request_id = request.state.request_id
        logger.error("unhandled", exc_info=error, extra={"fields": {"request_id": request_id}})
        error = internal_error(request_id)
    code = _snake_case(type(error).__name__)
    return Problem(
        type=f"urn:vouch:problem:{code.replace('_', '-')}",
        title=(type(error).__doc__ or "").split("\n", 1)[0].rstrip("."),
        status=status_of(type(error)),
        detail=str(error),
        instance=_asked_path(request),
        code=code,
        request_id=request.state.request_id,
        errors=errors,
    )


def add_problem_handlers(app: FastAPI) -> None:
    """Convert every error of a route to a problem document."""

    @app.exception_handler(VouchError)
    async def of_the_family(request: Request, error: VouchError) -> JSONResponse:
        forget_frames(error)
        return problem_response(request, error)

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        forget_frames(error)
        fields = [
            FieldError(pointer="/".join(map(str, ["", *entry["loc"]])), detail=_in_words(entry))
            for entry in error.errors()
        ]
        text = "; ".join(f"{field.pointer}: {field.detail.rstrip('.')}" for field in fields)
        invalid = InvalidRequest(f"The request is invalid. {_ended(text)} See /docs.")
        return problem_response(request, invalid, fields)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        forget_frames(error)
        if isinstance(error.__cause__, VouchError):  # an error of Vouch, raised in FastAPI's reader
            return problem_response(request, error.__cause__)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = _allowed(request) or headers.get("Allow", "")
        return problem_response(request, _as_family(request, error, headers), headers=headers)

    @app.exception_handler(Exception)
    async def of_ours(request: Request, _: Exception) -> JSONResponse:
        return problem_response(request, internal_error(request.state.request_id))


def forget_frames(error: BaseException) -> None:
    """Remove the tracebacks of an error and of its causes.

    Their frames hold the body of the request, and FastAPI's frames also hold the error. Without
    this, the body would stay in memory until a garbage collection.
    """
    chain: BaseException | None = error
    seen: set[BaseException] = set()  # a chain is a circle if an error is raised again and again
    while chain is not None and chain not in seen:
        seen.add(chain.with_traceback(None))
        chain = chain.__cause__ or chain.__context__


def internal_error(request_id: str) -> InternalError:
    """Return the error that the client gets for an unexpected error, without internal details."""
    return InternalError(
        "Something went wrong in the service; the request may be sent again. "
        f"The service's operator finds the reason in the log under {request_id}."
    )


def _in_words(entry: dict[str, Any]) -> str:
    """Describe the error of one field."""
    text = str(entry["msg"]).removeprefix("Value error, ")
    return "Must be sent as a file, with a file name." if "UploadFile" in text else text


def head_refusal(*, too_large: bool) -> bytes:
    """Return the bytes of the whole answer to a request whose head is malformed or too large."""
    status, reason = (431, "Request Header Fields Too Large") if too_large else (400, "Bad Request")
    why = (
        f"The head of the request has more than {limits.MAX_HEAD_BYTES:,} bytes or "
        f"{limits.MAX_HEADERS} headers. Send fewer, or shorter ones."
    )
    problem = {
        "type": "urn:vouch:problem:invalid-head",
        "title": "The HTTP request is malformed",
        "status": status,
        "detail": why if too_large else "The request does not begin with a valid HTTP/1.1 head.",
        "instance": "/",  # it was not read
        "code": "invalid_head",
        "request_id": uuid.uuid4().hex,
    }
    body = json.dumps(problem).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def responses(*errors: type[VouchError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of a route that may answer with ``errors``."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for error in errors:
        status = status_of(error)
        text = (error.__doc__ or "").split("\n", 1)[0]
        known = by_status.get(status, {}).get("description")
        by_status[status] = {
            "description": f"{known} {text}" if known else text,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return by_status


def _allowed(request: Request) -> str:
    """Return all methods of a path. Starlette would return only the methods of the first route."""
    methods = {
        method
        for route in request.app.routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
    }
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def _as_family(request: Request, error: HTTPException, headers: Mapping[str, str]) -> VouchError:
    """Convert an error of Starlette to an error of Vouch."""
    if error.status_code == 404:
        return PathNotFound(f"There is nothing at {_asked_path(request)}. See /docs for all paths.")
    if error.status_code == 405:
        return MethodNotAllowed(
            f"{request.method} is not possible at {_asked_path(request)}; use {headers['Allow']}."
        )
    return InvalidRequest(f"The request could not be read: {_ended(str(error.detail))} See /docs.")


def _ended(text: str) -> str:
    """Return a sentence with its mark at the end; a question keeps its question mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _asked_path(request: Request) -> str:
    """Return the path that the client sent. Add the root path if the scope's path lacks it."""
    root, path = root_path.get(), request.url.path
    return path if not root or path.startswith(f"{root}/") else root + path


def _snake_case(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
