"""The load generator does not wait for answers, and says how late they were."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.benchmarks.load.chart import chart
from tests.benchmarks.load.generator import Job, Outcome, run
from tests.benchmarks.load.photographs import TOKEN
from tests.benchmarks.load.requests import Request, form

pytestmark = pytest.mark.anyio

RATE, STALL_S = 100.0, 0.6
SECONDS, DEADLINE_S = 1.2, 0.3


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def load_of_a_server_that_stalls(
    seconds: float = SECONDS, patience_s: float = 5.0
) -> tuple[Outcome, list[bytes], float]:
    """The outcome where nothing is answered for `STALL_S`, then all at once; and what was sent.

    And how long the stall has been, which a busy machine lengthens.
    """
    stalled, bodies, times = asyncio.Event(), list[bytes](), list[float]()

    def end_stall() -> None:
        times.append(time.perf_counter())
        stalled.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                n = int(head.partition("Content-Length: ")[2].split("\r\n", 1)[0])
                body = await reader.readexactly(n)
                bodies.append(body)
                if len(bodies) == 1:
                    times.append(time.perf_counter())
                    asyncio.get_running_loop().call_later(STALL_S, end_stall)
                await stalled.wait()
                refused = b"refuse me" in body
                status, text = ("503 Busy", b"") if refused else ("200 OK", b'"id":"wanted"')
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
                )
        except (EOFError, OSError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    asked = {
        "good": (TOKEN, b'"id":"wanted"'),
        "wrong": (TOKEN, b'"id":"another"'),
        "refused": (b"refuse me", b""),
    }
    job = Job(
        port=server.sockets[0].getsockname()[1],
        server=os.getpid(),
        requests=[
            Request(kind, form("POST", "/", [("image", data)]), (right,))
            for kind, (data, right) in asked.items()
        ],
        shares=[2, 1, 1],
        rate=RATE,
        n_clients=0,
        warm_up_s=0.0,
        seconds=seconds,
        deadline_s=DEADLINE_S,
        patience_s=patience_s,
        seed=0,
    )
    async with server:
        return await run(job), bodies, times[-1] - times[0]


@pytest.mark.slow
async def test_latencies_count_from_when_a_request_was_due() -> None:
    outcome, bodies, stall_s = await load_of_a_server_that_stalls()
    n = len(bodies)
    assert n == pytest.approx(RATE * SECONDS, rel=0.4)
    latencies = outcome.latencies["good"]
    # Arrivals of the stall are half of all, and wait for half of it on average; a generator that
    # waits for answers would have sent few of them.
    assert max(latencies) > 0.9 * STALL_S
    mean_s = stall_s / SECONDS * stall_s / 2
    assert sum(latencies) == pytest.approx(len(latencies) * mean_s, rel=0.5)
    late = (stall_s - DEADLINE_S) / SECONDS  # those of its first half
    assert outcome.late == pytest.approx(outcome.goodput * late / (1 - late), rel=0.6)
    assert outcome.wrong > 0
    assert outcome.refused > 0
    assert outcome.lost == 0
    counted = outcome.goodput + outcome.late + outcome.wrong + outcome.refused
    # Those of the last moment, more on a busy machine, are answered after the measured time.
    assert 0.7 * n < round(counted * SECONDS) <= n


@pytest.mark.slow
async def test_no_two_requests_are_the_same_and_a_seed_repeats_them() -> None:
    bodies = [(await load_of_a_server_that_stalls(seconds=0.3))[1] for _ in range(2)]
    numbered = [body for body in bodies[0] if b"refuse me" not in body]
    assert len({*numbered}) == len(numbered)
    assert sorted(bodies[0]) == sorted(bodies[1])


async def test_clients_who_have_gone_are_counted() -> None:
    outcome, *_ = await load_of_a_server_that_stalls(patience_s=0.05, seconds=0.4)
    assert outcome.goodput == 0
    assert outcome.lost > 0
    assert outcome.statuses.keys() == {"0"}


def test_the_chart_has_a_line_for_each_system() -> None:
    point = {"offered_per_s": 10.0, "goodput_per_s": 9.0, "all_ms": {"p95": 400.0}}
    drawn = chart({"vouch": [point, point], "other_one": [point, point]})
    lines = [[line.get_xydata().tolist() for line in ax.lines] for ax in drawn.axes]  # type: ignore[union-attr]
    assert lines == [[[[10, 9], [10, 9]]] * 2, [[[10, 0.4], [10, 0.4]]] * 2]
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["vouch", "other one"]
