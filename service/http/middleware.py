"""The layers around all routes.

`RequestContext` is outermost: request ids, body limits, security headers, logs, errors. `Admission`
limits concurrent requests and their time. During the `Drain`, before the service stops, load
balancers can remove the service.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from urllib.parse import urlsplit, urlunsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_store.errors import DeadlineExceeded, NotReady, Overloaded, VouchError
from model_store.sqlite import wanted_until
from service import scheduling
from service.access.access import Caller
from service.access.hosts import AllowedHosts
from service.http.bodies import BoundedBodies
from service.http.problems import internal_error, problem_response
from service.observability.logs import UNMATCHED, RequestRecord, Tracing, request_record
from service.observability.metrics import Telemetry

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("service.requests")


@dataclass(slots=True)
class Drain:
    """The state of the drain, which begins with the first stop signal.

    During the drain, ``/readyz`` returns 503 and every answer closes its connection.

    Attributes
    ----------
    seconds : duration of the drain; after the drain, the service accepts no new connections.
    begun : whether a stop signal was received.
    """

    seconds: float = 0.0
    begun: bool = False

    def follow_signals(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP before the server's own handlers.

        The server does not handle SIGHUP, which a closed terminal sends. The first signal is
        logged and begins the drain. At the end of the drain, the server receives the signal
        and stops. A second signal stops the server immediately. Call this method in the main
        thread, on the server's event loop.
        """
        loop, end = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
        if not callable(end):
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.begun:
                end(signal.SIGINT, frame)
                end(signal.SIGINT, frame)  # uvicorn then stops immediately
                return
            self.begun = True
            fields = {"signal": signal.Signals(number).name, "drain_s": self.seconds}
            # The signal can interrupt the writing of another log line.
            loop.call_soon_threadsafe(partial(logger.info, "stopping", extra={"fields": fields}))
            number = signal.SIGTERM if number == signal.SIGHUP else number
            if self.seconds == 0:
                end(number, frame)
            else:
                loop.call_soon_threadsafe(loop.call_later, self.seconds, end, number, None)

        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) == end:
                signal.signal(number, handle)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # `nohup` ignores it
            signal.signal(signal.SIGHUP, handle)


MOST_OF_ONE_CALLER = 3 / 4
"""Maximum share of the concurrent requests that one caller may use, so that others get a turn."""


def is_counted(path: str) -> bool:
    """Return whether the limits apply to ``path``; they do not apply to health checks."""
    return path.startswith("/v1/")


class ClientGone(Exception):
    """The client has disconnected before the answer."""


class Admission:
    """Limits the number of concurrent requests, and the time of each request.

    There is a limit for all requests, and another limit for the requests of one caller. A request
    beyond a limit is refused before its body is read. A request is cancelled if it misses the
    deadline, or if the client disconnects. The encoder then does no useless work.

    Parameters
    ----------
    max_in_flight : maximum number of concurrent requests.
    deadline_s : maximum seconds from the last byte of a request to its answer.
    account_of : function that returns the caller of a request, from the ASGI scope.

    Raises
    ------
    Overloaded, DeadlineExceeded, ClientGone : `RequestContext` converts them to an answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        max_in_flight: int,
        deadline_s: float,
        account_of: Callable[[Scope], str] = lambda _: "",
    ) -> None:
        self._app = app
        self._in_flight = telemetry.in_flight
        self._max_in_flight = max_in_flight
        self._deadline_s = deadline_s
        self._account_of = account_of
        self._most = max(1, math.ceil(max_in_flight * MOST_OF_ONE_CALLER))
        self._n = 0
        self._n_of: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not is_counted(scope["path"]):
            await self._app(scope, receive, send)
            return
        account = self._account_of(scope)
        if self._n >= self._max_in_flight:
            raise Overloaded(
                f"Too many concurrent requests: {self._n} are in progress, and this service allows "
                "no more. Retry later."
            )
        if self._n_of[account] >= self._most:
            raise Overloaded(
                f"Too many concurrent requests of this caller: {self._most} are in progress, and "
                "one caller may have no more. Retry later."
            )
        self._n += 1
        self._n_of[account] += 1
        self._in_flight.set(self._n)
        scheduling.caller.set(account)
        try:
            await _while_wanted(self._app, scope, receive, send, self._deadline_s)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"The request was not answered within {self._deadline_s:g} s. The service is busy. "
                "Send it again."
            ) from error
        finally:
            self._n -= 1
            self._n_of[account] -= 1
            if not self._n_of[account]:
                del self._n_of[account]
            self._in_flight.set(self._n)


WATCHED_AFTER_S = 0.05
"""Delay in seconds between the end of the body and the watch for a client that disconnects. Most
answers are sent earlier, and the watch takes 7 % of the CPU time of an answer whose embedding is
cached."""


async def _while_wanted(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, deadline_s: float
) -> None:
    """Run ``app``; cancel it at the deadline, or if the client disconnects before the answer.

    The deadline is measured without the time in which ``app`` waits for the body.

    Raises
    ------
    TimeoutError, ClientGone
    """
    loop = asyncio.get_running_loop()
    watch: asyncio.Task[None] | None = None
    watch_starts: asyncio.TimerHandle | None = None
    answering = gone = False
    until = loop.time() + deadline_s
    wanted_until.set(time.monotonic() + deadline_s)

    async def noting_the_end() -> Message:
        nonlocal watch_starts, until
        if watch_starts is not None:
            return await receive()
        if not deadline.expired():
            deadline.reschedule(None)
        message = await receive()
        until = loop.time() + deadline_s
        wanted_until.set(time.monotonic() + deadline_s)
        if not deadline.expired():
            deadline.reschedule(until)
        if message["type"] == "http.request" and not message.get("more_body"):
            watch_starts = loop.call_later(WATCHED_AFTER_S, start_watch)
        return message

    async def noting_the_start(message: Message) -> None:
        nonlocal answering, gone
        answering = True
        if gone and not deadline.expired():  # an answer that has begun is sent completely
            gone = False
            deadline.reschedule(until)
        await send(message)

    def start_watch() -> None:
        nonlocal watch
        watch = asyncio.create_task(watching())

    async def watching() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if not answering and not deadline.expired():
            gone = True
            deadline.reschedule(loop.time())  # cancels the app now

    try:
        async with asyncio.timeout_at(until) as deadline:
            await app(scope, noting_the_end, noting_the_start)
    except TimeoutError as error:
        if gone:
            raise ClientGone from error
        raise
    finally:
        if watch_starts is not None:
            watch_starts.cancel()
        if watch is not None:
            watch.cancel()


CLIENT_GONE = 499
"""Status in the log for a request whose client has disconnected; this status is never sent."""

_STOPPED = NotReady(
    "The service stopped before the request ended. Send a search again. Before you send a change "
    "again, check whether the change was made."
)
"""The answer to a request that the end of the service cancels."""


def content_security_policy(
    image_origins: Sequence[str] = (), frame_ancestors: Sequence[str] = ()
) -> str:
    """Return the content security policy, which excludes other origins.

    Parameters
    ----------
    image_origins : other origins from which the page may load images, for example for an image link
        that a visitor drops on the page.
    frame_ancestors : origins whose pages may show the page in a frame.
    """
    images = " ".join(("'self'", "blob:", "data:", *image_origins))
    fetched = " ".join(("'self'", "data:", *image_origins))
    frames = " ".join(frame_ancestors) or "'none'"
    return (
        f"default-src 'self'; img-src {images}; connect-src {fetched}; style-src 'self'; "
        "script-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors {frames}"
    )


DOCS_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The content security policy of ``/docs``, the only page with an inline script."""

PERMISSIONS_POLICY = "camera=(), display-capture=(), geolocation=(), microphone=(), usb=()"
"""The page uses none of these features. To take a photograph, the page uses a file input."""

_NO_DOCUMENTS = {b"text/javascript", b"text/css"}
"""Media types without the headers of documents: browsers ignore these headers on other files, and
the page's first view consists mostly of small scripts."""

_PROBES = {"/livez", "/readyz", "/metrics"}
"""Paths that are requested every few seconds; the log shows only their failures."""


class RequestContext:
    """The layer around limits and routes.

    Each request gets an id (``request.state.request_id``, header ``X-Request-Id``). A request for
    another host is refused. A body above its limit is refused while it arrives. HEAD is answered
    like GET, without a body. Each request is counted, logged and traced, and each answer gets
    security headers. An unexpected exception becomes a problem document without internal details.

    Parameters
    ----------
    hosts : names of the service; None if the header Host is not checked.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        max_image_bytes: int,
        max_batch_bytes: int,
        *,
        hosts: AllowedHosts | None = None,
        min_upload_rate: float = 1.0,
        for_other_origins: bool = False,
        policy: str | None = None,
        tracing: Tracing | None = None,
        drain: Drain | None = None,
    ) -> None:
        self._app = app
        self._telemetry = telemetry
        self._hosts = hosts
        self._bodies = BoundedBodies(max_image_bytes, max_batch_bytes, min_upload_rate)
        # Whether pages of other origins may show images of the service, for example in an <img>.
        resource_policy = b"cross-origin" if for_other_origins else b"same-origin"
        self._of_all = (
            (b"cross-origin-resource-policy", resource_policy),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        )
        self._of_documents = _headers_of_documents(policy or content_security_policy())
        self._tracing = tracing
        self._drain = drain or Drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(uuid.uuid4().hex, scope["method"], scope["path"])
        outer = request_record.set(record)
        tracing = self._tracing
        end_trace = None if tracing is None else tracing.begin(record, Headers(scope=scope))
        started, state = time.perf_counter(), scope.setdefault("state", {})
        state |= {"request_id": record.request_id, "answer_headers": {}}
        answering = answered = False
        is_head = scope["method"] == "HEAD"
        # uvicorn keeps the original scope, and therefore sends no body for HEAD.
        asked = {**scope, "method": "GET"} if is_head else scope

        async def send_with_headers(message: Message) -> None:
            nonlocal answering, answered
            if message["type"] == "http.response.start":
                record.status, answering = message["status"], True
                self._add_headers(message, record, state["answer_headers"])
            answered = message["type"] == "http.response.body" and not message.get("more_body")
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            body = self._bodies.begin(scope, receive)
            try:
                if self._hosts is not None:
                    self._hosts.check(scope)
                await self._app(asked, body.receive, send_with_headers)
            finally:
                body.end()
        except (ClientGone, ClientDisconnect):
            record.status, record.code = CLIENT_GONE, "client_gone"
        except (VouchError, asyncio.CancelledError) as error:
            if answering:
                raise
            problem = error if isinstance(error, VouchError) else _STOPPED
            await problem_response(Request(asked), problem)(scope, receive, send_with_headers)
        except Exception:
            request_logger.exception(
                "unhandled", extra={"fields": {"request_id": record.request_id}}
            )
            if answering and not answered:
                raise  # the server closes the connection, so that the client sees the failure
            if not answering:
                response = problem_response(Request(asked), internal_error(record.request_id))
                await response(scope, receive, send_with_headers)
        finally:
            record.seconds = time.perf_counter() - started
            self._end(record, asked, end_trace)
            request_record.reset(outer)

    def _end(
        self, record: RequestRecord, scope: Scope, end_trace: Callable[[], None] | None
    ) -> None:
        """Count and log a request that has ended, and end its trace."""
        record.route = getattr(scope.get("route"), "path", UNMATCHED)
        caller: Caller | None = scope["state"].get("caller")
        if caller is not None and caller.name is not None:
            record.key_id, record.key_name = caller.id, caller.name
        self._telemetry.request(record)
        of_probe = record.path in _PROBES and record.status == 200
        level = logging.DEBUG if of_probe else logging.INFO
        request_logger.log(level, "request", extra={"fields": record.fields()})
        if end_trace is not None:
            end_trace()

    def _add_headers(
        self, message: Message, record: RequestRecord, of_access: Mapping[str, str]
    ) -> None:
        """Add the headers of all answers to the start of an answer."""
        path, sent = record.path, list(message.get("headers", ()))
        added = [*self._of_all, (b"x-request-id", record.request_id.encode())]
        if self._drain.begun:
            added.append((b"connection", b"close"))
        media_type = next((value for name, value in sent if name == b"content-type"), b"")
        if media_type.split(b";")[0] not in _NO_DOCUMENTS:
            added += _OF_DOCS if path == "/docs" else self._of_documents
        if path == "/" or path.startswith("/page/"):
            # The browser checks every file for changes, so that it never mixes files of two
            # releases. With ETags, an unchanged file is not sent again.
            added.append((b"cache-control", b"no-cache"))
        names = {name for name, _ in added}
        message["headers"] = [one for one in sent if one[0] not in names] + added
        if of_access:
            _add_headers_of_access(MutableHeaders(scope=message), of_access)
        if record.status == 307:
            headers = MutableHeaders(scope=message)
            headers["Location"] = _within_host(headers["Location"])


def _headers_of_documents(policy: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of answers that a browser may show as a page."""
    return (
        (b"content-security-policy", policy.encode()),
        (b"permissions-policy", PERMISSIONS_POLICY.encode()),
        (b"cross-origin-opener-policy", b"same-origin"),
    )


_OF_DOCS = _headers_of_documents(DOCS_POLICY)


def _within_host(location: str) -> str:
    """Return a redirect's target without its host, because the host came from the request."""
    return urlunsplit(("", "", *urlsplit(location)[2:]))


def _add_headers_of_access(headers: MutableHeaders, values: Mapping[str, str]) -> None:
    """Add the headers that `service.access.access` has set."""
    for name, value in values.items():
        if name == "Vary":
            headers.add_vary_header(value)
        elif name == "Cache-Control" and name in headers:  # the answer is for this caller only
            headers[name] = headers[name].replace("public", "private")
        else:
            headers[name] = value
