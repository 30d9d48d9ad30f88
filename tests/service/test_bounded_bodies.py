"""Bodies that are held: each up to its bound, and all together up to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import pytest
from starlette.types import Message, Receive, Scope

from model_store.errors import ImageTooLarge, UploadTooSlow
from service.http import limits
from service.http.bodies import BoundedBodies
from service.scheduling import caller

pytestmark = pytest.mark.anyio

SMALL, ALL, IMAGE = 100, 1_000, 450


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SMALL_BODY_BYTES", SMALL)
    monkeypatch.setattr(limits, "HELD_BODIES_BYTES", ALL)
    monkeypatch.setattr(limits, "FORM_ALLOWANCE", 0)


@pytest.fixture
def bodies() -> BoundedBodies:
    return BoundedBodies(IMAGE, 10 * ALL)


def scope_of(n_declared: int | None, path: str = "/v1/galleries/a/search") -> Scope:
    headers = [] if n_declared is None else [(b"content-length", str(n_declared).encode())]
    return {"type": "http", "path": path, "headers": headers}


@contextmanager
def taken_in(bodies: BoundedBodies, scope: Scope, receive: Receive) -> Iterator[Receive]:
    body = bodies.begin(scope, receive)
    try:
        yield body.receive
    finally:
        body.end()


def bytes_of(n: int) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(n), "more_body": True}

    return receive


class Upload:
    """An upload of which so many bytes have come, held until it is `ended`."""

    def __init__(
        self, bodies: BoundedBodies, n_bytes: int, who: str, n_declared: int | None = IMAGE
    ) -> None:
        self._over = asyncio.Event()
        self.is_held = False
        self._task = asyncio.create_task(self._hold(bodies, n_bytes, who, n_declared))

    async def _hold(
        self, bodies: BoundedBodies, n_bytes: int, who: str, n_declared: int | None
    ) -> None:
        caller.set(who)
        with taken_in(bodies, scope_of(n_declared), bytes_of(n_bytes)) as receive:
            await receive()
            self.is_held = True
            await self._over.wait()

    async def ended(self) -> None:
        self._over.set()
        await self._task

    async def given_up(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def uploads(*given: Upload) -> AsyncIterator[list[bool]]:
    """Which of some uploads are held, after a moment; they end with the context."""
    for _ in range(5):
        await asyncio.sleep(0)
    yield [one.is_held for one in given]
    for one in given:
        await one.given_up()


async def test_one_caller_holds_half_of_the_room(bodies: BoundedBodies) -> None:
    greedy = [Upload(bodies, SMALL + 1, "greedy") for _ in range(3)]
    async with uploads(*greedy, Upload(bodies, SMALL + 1, "modest")) as held:
        assert held == [True, False, False, True]


async def test_whoever_waits_is_next_when_one_has_ended(bodies: BoundedBodies) -> None:
    first, second = (Upload(bodies, SMALL + 1, "greedy") for _ in range(2))
    async with uploads(first, second) as held:
        assert held == [True, False]
        await first.ended()
        async with uploads(second) as held_then:
            assert held_then == [True]


async def test_one_that_is_given_up_leaves_its_room(bodies: BoundedBodies) -> None:
    first = Upload(bodies, SMALL + 1, "greedy")
    async with uploads(first) as held:
        assert held == [True]
    async with uploads(Upload(bodies, SMALL + 1, "greedy")) as held:
        assert held == [True]


async def test_small_ones_never_wait(bodies: BoundedBodies) -> None:
    crowd = [Upload(bodies, SMALL, "greedy") for _ in range(50)]
    async with uploads(*crowd) as held:
        assert all(held)


async def test_one_that_does_not_say_how_large_it_is_counts_as_the_largest(
    bodies: BoundedBodies,
) -> None:
    crowd = [Upload(bodies, SMALL + 1, who, None) for who in "abc"]
    async with uploads(*crowd) as held:
        assert held == [True, True, False]


async def test_one_larger_than_all_the_room_has_it_to_itself(bodies: BoundedBodies) -> None:
    path = "/v1/galleries/a/search/batch"
    with taken_in(bodies, scope_of(5 * ALL, path), bytes_of(SMALL + 1)) as receive:
        await receive()
        async with uploads(Upload(bodies, SMALL + 1, "other")) as held:
            assert held == [False]


@pytest.mark.parametrize("n_declared", [None, IMAGE])
async def test_a_body_beyond_its_bound_is_refused(
    bodies: BoundedBodies, n_declared: int | None
) -> None:
    with taken_in(bodies, scope_of(n_declared), bytes_of(IMAGE // 2)) as receive:
        await receive()
        await receive()
        with pytest.raises(ImageTooLarge, match="675 bytes"):
            await receive()


@pytest.mark.parametrize(
    "item_id",
    ["feedback", "shelf/search/batch", "a/decide", "search/text", "review/leases", "search/json"],
)
def test_id_of_an_item_does_not_change_the_size_of_its_image(
    bodies: BoundedBodies, item_id: str
) -> None:
    path = "/v1/galleries/digits/items/"
    nothing = bytes_of(0)
    bounds = [
        bodies.begin(scope_of(None, path + one), nothing)._bound for one in (item_id, "plain")
    ]
    assert bounds[0] == bounds[1]


async def test_one_that_says_itself_that_it_is_too_large_is_refused(bodies: BoundedBodies) -> None:
    with pytest.raises(ImageTooLarge, match="451 bytes"):
        bodies.begin(scope_of(IMAGE + 1), bytes_of(1))


def trickle(n_bytes: int, every_s: float) -> Receive:
    """Receive the bytes of a body one by one, the first at once."""
    left = n_bytes

    async def receive() -> Message:
        nonlocal left
        if left < n_bytes:
            await asyncio.sleep(every_s)
        left -= 1
        return {"type": "http.request", "body": b"x", "more_body": left > 0}

    return receive


@pytest.mark.parametrize(("rate", "is_refused"), [(0.001, False), (5_000, True)])
async def test_upload_below_the_least_rate_is_refused(
    monkeypatch: pytest.MonkeyPatch, rate: float, is_refused: bool
) -> None:
    monkeypatch.setattr(limits, "UPLOAD_GRACE_S", 0.05)
    bodies = BoundedBodies(IMAGE, IMAGE, rate)
    with taken_in(bodies, scope_of(50), trickle(50, 0.004)) as receive:
        refused = pytest.raises(UploadTooSlow, match="5,000 bytes per second")
        with refused if is_refused else nullcontext():
            while (await receive())["more_body"]:
                pass


async def test_time_in_which_the_service_does_not_read_is_not_the_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UPLOAD_GRACE_S", 0.3)
    bodies = BoundedBodies(IMAGE, IMAGE, 5_000)
    with taken_in(bodies, scope_of(3), trickle(3, 0)) as receive:
        for _ in range(3):
            await asyncio.sleep(0.3)
            await receive()


async def test_client_that_sent_all_may_wait_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UPLOAD_GRACE_S", 0.02)
    bodies = BoundedBodies(IMAGE, IMAGE, 1e9)
    with taken_in(bodies, scope_of(1), trickle(1, 0)) as receive:
        await receive()
        with pytest.raises(TimeoutError):  # not UploadTooSlow
            await asyncio.wait_for(receive_of_one_that_stays(receive), 0.1)


async def receive_of_one_that_stays(receive: Receive) -> Message:
    while True:
        await receive()
        await asyncio.sleep(0.01)
