"""The requests and errors of `VouchClient`."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from model_store.errors import InvalidRequest
from model_store.items import check_item_id
from model_store.text_values import lower_scheme, split_address
from service import schemas
from service.schemas.keywords import Filter, as_json, require_text

AnswerT = TypeVar("AnswerT", bound=BaseModel)

MAX_ATTEMPTS = 3
MAX_WAIT_S = 10.0
"""Maximum delay in seconds before a client sends a request again to a busy service."""

WAIT_WHEN_LOST_S = 1.0
"""Delay in seconds before a client sends a query again whose connection was lost."""

# A proxy that loses a replica closes a connection without an answer, if the connection has carried
# requests before: HAProxy leaves the retry to the client.
LOST_CONNECTION = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)

_QUERY = re.compile(r"/v1/galleries/[^/]+/(search|assess|embed|decide)")

_ARGUMENTS = {"items": "item_id", "bundles": "bundle_id", "review": "query_id", "unknown": "group"}
"""The name of the argument that stands in a path, by the part before it."""

Fields = Mapping[str, str | int | float]


class VouchProblem(Exception):
    """The service answered with a problem, or the response is not from Vouch.

    Attributes
    ----------
    status : HTTP status code.
    code : stable name of the kind of problem, for programs; ``not_vouch`` if the response is not
        from the service, for example from a proxy.
    detail : what was received, what was wanted and what to do.
    request_id : id of the request in the service's log, for the operator.
    retry_after : seconds after which a new request may succeed; None if the service does not state
        a time.
    errors : the invalid fields.

    Examples
    --------
    >>> try:
    ...     vouch.search("demo", b"not an image")
    ... except VouchProblem as problem:
    ...     print(problem.status, problem.code, problem.request_id)
    """

    def __init__(self, problem: schemas.Problem, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.status} {problem.code}: {problem.detail}")
        self._problem = problem
        self.status = problem.status
        self.code = problem.code
        self.detail = problem.detail
        self.request_id = problem.request_id
        self.retry_after = retry_after
        self.errors = tuple(problem.errors or ())

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy is made from; by default, pickle passes the message to `__init__`."""
        return type(self), (self._problem, self.retry_after), self.__dict__


def problem_of(response: httpx2.Response) -> VouchProblem:
    """Return the problem that a response describes."""
    try:
        problem = schemas.Problem.model_validate_json(response.content)
    except ValidationError:
        return not_vouch(response)
    return VouchProblem(problem, _retry_after(response))


def not_vouch(response: httpx2.Response) -> VouchProblem:
    """Return the problem `not_vouch`: the response is from another program or another release."""
    problem = schemas.Problem(
        type="about:blank",
        title=response.reason_phrase,
        status=response.status_code,
        detail=f"{response.request.url} was answered by another program or release: "
        f"{len(response.content)} bytes of {response.headers.get('content-type', 'no type')}.",
        instance=response.request.url.path,
        code="not_vouch",
        request_id=response.headers.get("x-request-id", ""),
    )
    return VouchProblem(problem, _retry_after(response))


def read(response: httpx2.Response, answer: type[AnswerT]) -> AnswerT:
    """Parse the JSON of a successful response.

    Raises
    ------
    VouchProblem : the JSON does not fit the schema; the code is ``not_vouch``.
    """
    try:
        return answer.model_validate_json(response.content)
    except ValidationError:
        raise not_vouch(response) from None


def _retry_after(response: httpx2.Response) -> float | None:
    """Return the delay in ``Retry-After``, in seconds.

    Return None if the header contains a date. The service never sends a date.
    """
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdecimal() else None


def sent_again(key: str | None) -> dict[str, str]:
    """Return the header that makes retries of a request safe."""
    return {"Idempotency-Key": key or uuid.uuid4().hex}


def fields_of(**named: str | float | Filter | None) -> Fields:
    """Return the given options as fields of a form or query string; filters become JSON."""
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        for name, value in body_of(**named).items()
    }


def record_of(place: str, value: BaseModel | Mapping[str, object]) -> dict[str, Any]:
    """Return a part of a request as a JSON object; a field that is None is omitted.

    Raises
    ------
    TypeError, InvalidRequest : it is no mapping, or see `body_of`.
    """
    given = value.model_dump() if isinstance(value, BaseModel) else value
    if not isinstance(given, Mapping):
        raise TypeError(f"{place}: received {type(given).__name__}, wanted a mapping.")
    return {name: one for name, one in as_json(place, given).items() if one is not None}


def body_of(**named: object) -> dict[str, Any]:
    """Return the given arguments as a JSON object; an argument that is None is omitted.

    Raises
    ------
    TypeError : JSON has no such type; the message names the place of the value.
    InvalidRequest : a number is infinite or no number; the message names its place.
    """
    return {name: as_json(name, value) for name, value in named.items() if value is not None}


def path_of(*parts: str) -> str:
    """Return the path of a gallery, or of a resource in it.

    Raises
    ------
    TypeError : a part is not text; the message names the argument.
    InvalidRequest : a part is empty, or has characters that would lead to another path.
    """
    for place, part in enumerate(parts):
        require_text("gallery" if place == 0 else _ARGUMENTS.get(parts[1], "id"), part)
        if place == 2 and parts[1] == "items":
            try:
                check_item_id(part)
            except ValueError as error:
                raise InvalidRequest(f"The item's id {error}, not {part[:80]!r}.") from error
        elif {"/", "\0"} & {*part} or part in {"", ".", ".."}:
            raise InvalidRequest(f"A name is one part of a path; {part[:80]!r} is not.")
    return "/".join(["/v1/galleries", *(quote(part, safe="") for part in parts)])


def send(http: httpx2.Client, request: httpx2.Request) -> httpx2.Response:
    """Send a request, retry while the service is busy, and return the successful response.

    A query is also sent again if its replica of the service ended before it answered.

    Raises
    ------
    VouchProblem : the service refused the request, or stayed busy.
    httpx2.RequestError : the service does not answer.
    """
    request.read()  # a body that is in memory can be sent again
    attempt = 1
    while True:
        try:
            response = http.send(request)
            if response.is_success:
                return response
            wait = seconds_to_wait(response, attempt)
        except LOST_CONNECTION as error:
            wait = seconds_to_wait(error, attempt)
        time.sleep(wait)
        attempt += 1


def seconds_to_wait(
    outcome: httpx2.Response | httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError,
    attempt: int,
) -> float:
    """Return the delay before the next attempt, in seconds; attempts count from 1.

    Raises
    ------
    VouchProblem : the service refused the request, or this was the last attempt.
    httpx2.RequestError : the connection of a write was lost, or this was the last attempt.
    """
    changes_nothing = (
        outcome.request.method == "GET" or _QUERY.match(outcome.request.url.path) is not None
    )
    if isinstance(outcome, httpx2.Response):
        problem = problem_of(outcome)
        error: Exception = problem
        wait = problem.retry_after
        passes = problem.status == 503 or (problem.code == "replica_lost" and changes_nothing)
    else:
        error, wait, passes = outcome, WAIT_WHEN_LOST_S, changes_nothing
    if not passes or wait is None or attempt == MAX_ATTEMPTS:
        raise error
    return min(wait, MAX_WAIT_S)


def base_of(url: str) -> str:
    """Return the URL of a service with its scheme in lower case, after a check.

    Raises
    ------
    TypeError : the URL is not text.
    ValueError : the URL does not begin with ``http://`` or ``https://``, or is not an address.
    """
    try:
        url = lower_scheme(require_text("url", url))
        split_address(url, ("http", "https"))
    except ValueError as error:
        raise ValueError(f"url: {error}") from None
    return url


def headers_of(api_key: str | None) -> dict[str, str]:
    """Return the headers of all requests.

    Raises
    ------
    TypeError : the key is not text.
    ValueError : the key has characters that a header cannot carry; the message does not show the
        key.
    """
    if api_key is None:
        return {}
    if not re.fullmatch(r"[!-~]+", require_text("api_key", api_key)):
        raise ValueError("The API key has invalid characters. Copy it again.")
    return {"Authorization": f"Bearer {api_key}"}
