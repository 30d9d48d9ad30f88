"""Who is let in, for how long, and what happens to those nobody waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_store.errors import DeadlineExceeded, Overloaded
from model_store.sqlite import wanted_until
from service.http.middleware import Admission, ClientGone
from service.observability.metrics import Telemetry

pytestmark = pytest.mark.anyio


class Connection:
    """A request as a server shows it to the application, with a client that may leave."""

    def __init__(self, method: str = "POST", path: str = "/v1/galleries") -> None:
        self.scope: Scope = {"type": "http", "method": method, "path": path}
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self._body = [{"type": "http.request", "body": b"x", "more_body": False}]

    async def receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


class Endpoint:
    """Reads the body, waits until it may answer, and answers; notes what becomes of it."""

    def __init__(self) -> None:
        self.begun = self.cancelled = self.ended = 0
        self.may_answer = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        try:
            await receive()
            await self.may_answer.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1


Serve = Callable[[Connection], "asyncio.Task[None]"]


def serving(app: ASGIApp, **options: Any) -> Serve:
    admission = Admission(app, Telemetry(), **{"max_in_flight": 2, "deadline_s": 5.0, **options})

    def serve(connection: Connection) -> asyncio.Task[None]:
        work = admission(connection.scope, connection.receive, connection.send)
        return asyncio.ensure_future(work)

    return serve


async def test_one_beyond_the_bound_is_refused_before_it_is_read() -> None:
    endpoint = Endpoint()
    serve = serving(endpoint)
    taken = [serve(Connection()) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match="2 are in progress"):
        await serve(Connection())
    assert endpoint.begun == 2
    endpoint.may_answer.set()
    await asyncio.gather(*taken)
    await serve(Connection())
    assert endpoint.ended == 3


async def test_health_and_the_page_are_always_let_in() -> None:
    endpoint = Endpoint()
    serve = serving(endpoint, max_in_flight=1)
    counted = serve(Connection("GET"))
    others = [serve(Connection("GET", path)) for path in ("/livez", "/readyz", "/metrics", "/")]
    await asyncio.sleep(0.01)
    assert endpoint.begun == 5
    with pytest.raises(Overloaded):
        await serve(Connection("GET"))
    endpoint.may_answer.set()
    await asyncio.gather(counted, *others)


async def test_one_caller_leaves_places_for_others() -> None:
    endpoint = Endpoint()
    serve = serving(endpoint, max_in_flight=8, account_of=lambda scope: scope["method"])
    taken = [serve(Connection("POST")) for _ in range(6)]
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match="of this caller: 6 are in progress"):
        await serve(Connection("POST"))
    others = [serve(Connection("GET")) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert endpoint.begun == 8
    endpoint.may_answer.set()
    await asyncio.gather(*taken, *others)
    await serve(Connection("POST"))  # their places are free again


async def test_what_takes_too_long_is_given_up() -> None:
    endpoint = Endpoint()
    serve = serving(endpoint, max_in_flight=1, deadline_s=0.5)
    with pytest.raises(DeadlineExceeded, match=r"0\.5 s"):
        await serve(Connection())
    assert endpoint.cancelled == 1
    endpoint.may_answer.set()
    await serve(Connection())  # its place is free again


class Uploading(Connection):
    """A client that sends three pieces, each after a while."""

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self._every_s, self._n_left = every_s, 3

    async def receive(self) -> Message:
        if not self._n_left:
            return await super().receive()
        await asyncio.sleep(self._every_s)
        self._n_left -= 1
        return {"type": "http.request", "body": b"x", "more_body": True}


async def read_all(receive: Receive) -> None:
    while (await receive()).get("more_body"):
        pass


async def test_deadline_begins_when_the_body_is_there() -> None:
    until: list[float] = []

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        until.append(wanted_until.get() - time.monotonic())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    await serving(reads, deadline_s=1)(Uploading(every_s=0.4))
    assert 0.75 < until[0] <= 1


@pytest.mark.parametrize("reads_first", [True, False])
async def test_deadline_holds_after_and_without_the_body(reads_first: bool) -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        if reads_first:
            await read_all(receive)
        await asyncio.sleep(60)

    with pytest.raises(DeadlineExceeded):
        await serving(waits, deadline_s=0.05)(Uploading(every_s=0.01))


async def test_a_client_that_leaves_takes_its_work_along() -> None:
    endpoint, connection = Endpoint(), Connection()
    task = serving(endpoint)(connection)
    await asyncio.sleep(0.01)
    connection.left.set()
    with pytest.raises(ClientGone):
        await task
    assert endpoint.cancelled == 1
    assert connection.sent == []


async def test_a_client_that_has_its_answer_may_leave() -> None:
    """What a route still has to put away is not interrupted."""
    endpoint, connection = Endpoint(), Connection()
    endpoint.may_answer.set()
    endpoint.may_end.clear()
    task = serving(endpoint)(connection)
    await asyncio.sleep(0.01)
    connection.left.set()
    await asyncio.sleep(0.01)
    endpoint.may_end.set()
    await task
    assert (endpoint.cancelled, endpoint.ended) == (0, 1)


async def test_an_error_of_the_route_is_passed_on() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("ours")

    serve = serving(fails, max_in_flight=1)
    for _ in range(3):  # and its place is given back
        with pytest.raises(LookupError):
            await serve(Connection())


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_an_answer_that_is_on_its_way_when_the_client_leaves_is_given_to_its_end(
    leaves_first: bool,
) -> None:
    endpoint, connection = Endpoint(), Connection()
    endpoint.may_end.clear()
    task = serving(endpoint)(connection)
    await asyncio.sleep(0.01)
    both = [connection.left, endpoint.may_answer]
    for event in both if leaves_first else reversed(both):
        event.set()
    await asyncio.sleep(0.01)
    endpoint.may_end.set()
    await task
    assert (endpoint.cancelled, endpoint.ended, len(connection.sent)) == (0, 1, 2)
