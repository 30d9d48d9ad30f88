"""Admission control, deadlines, and the drain before the service stops.

During the drain, load balancers can remove the service.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_store.errors import DeadlineExceeded, Overloaded
from model_store.sqlite import wanted_until
from service import fair_share
from service.observability.metrics import Telemetry

logger = logging.getLogger(__name__)


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
        self._enter(account)
        fair_share.caller.set(account)
        try:
            await _while_wanted(self._app, scope, receive, send, self._deadline_s)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"The request was not answered within {self._deadline_s:g} s. The service is busy. "
                "Send it again."
            ) from error
        finally:
            self._leave(account)

    def _enter(self, account: str) -> None:
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

    def _leave(self, account: str) -> None:
        self._n -= 1
        self._n_of[account] -= 1
        if not self._n_of[account]:
            del self._n_of[account]
        self._in_flight.set(self._n)


async def _while_wanted(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, deadline_s: float
) -> None:
    """Run ``app``; cancel it at the deadline, or if the client disconnects before the answer.

    The deadline is measured without the time in which ``app`` waits for the body.

    Raises
    ------
    TimeoutError, ClientGone
    """
    watch: asyncio.Task[None] | None = None
    answering = gone = False
    until = math.inf

    def begin() -> None:
        nonlocal until
        until = asyncio.get_running_loop().time() + deadline_s
        wanted_until.set(time.monotonic() + deadline_s)
        if not deadline.expired():
            deadline.reschedule(until)

    async def noting_the_end() -> Message:
        nonlocal watch
        if watch is None and not deadline.expired():
            deadline.reschedule(None)
        message = await receive()
        if watch is None:
            begin()
        uploaded = message["type"] == "http.request" and not message.get("more_body")
        if uploaded and watch is None:
            watch = asyncio.create_task(watching())
        return message

    async def noting_the_start(message: Message) -> None:
        nonlocal answering, gone
        answering = True
        if gone and not deadline.expired():  # an answer that has begun is sent completely
            gone = False
            deadline.reschedule(until)
        await send(message)

    async def watching() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if not answering and not deadline.expired():
            gone = True
            deadline.reschedule(asyncio.get_running_loop().time())  # cancels the app now

    try:
        async with asyncio.timeout(None) as deadline:
            begin()
            await app(scope, noting_the_end, noting_the_start)
    except TimeoutError as error:
        if gone:
            raise ClientGone from error
        raise
    finally:
        if watch is not None:
            watch.cancel()
