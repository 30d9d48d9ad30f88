"""A load generator, in a process of its own: requests that do not wait for answers.

Arrivals are a Poisson process: the gaps between them are drawn from an exponential distribution
before the first is sent. A latency counts from the moment at which its request was due, whether or
not it was sent then: of a generator that waits for slow answers before it asks again, nobody would
hear how long those had to wait who would have come meanwhile ("coordinated omission").

    python -m tests.benchmarks.load.generator JOB

reads a pickled `Job`, and prints an `Outcome` as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
import uvloop

from tests.benchmarks.load.photographs import TOKEN
from tests.benchmarks.load.requests import Request
from tests.benchmarks.load.servers import processor_seconds

NO_ANSWER = 0
"""The status of a request whose client went, or whose connection broke."""


@dataclass(frozen=True, slots=True)
class Job:
    """Load to be made.

    Attributes
    ----------
    server : id of the process whose computing is measured, with its children.
    rate : requests that are due a second.
    n_clients : clients that ask one after the other, in place of a rate, where it is not 0.
    warm_up_s, seconds : before measuring, and of it.
    deadline_s : within which an answer is of use.
    patience_s : after which a client goes.
    seed : of arrivals, and of what is asked: jobs of different seeds have no image in common.
    """

    port: int
    server: int
    requests: Sequence[Request]
    shares: Sequence[float]
    rate: float
    n_clients: int
    warm_up_s: float
    seconds: float
    deadline_s: float
    patience_s: float
    seed: int


@dataclass(slots=True)
class Outcome:
    """The measured part of a run.

    Attributes
    ----------
    offered : requests that were due a second.
    goodput : answers a second that are right, and came within the deadline.
    refused, late, wrong, lost : others, a second; ``late`` ones are right, ``lost`` had no answer.
    latencies : seconds of right answers, by kind of request.
    statuses : of all requests that were due, how often.
    generator_share : of one processor, what this process has taken.
    server_share : of one processor, what the server and its children have taken.
    busy_share : of one processor, what the processors of this process have done for anybody.
    lateness_s : 99th percentile of how much later than due a request was sent.
    """

    offered: float = 0.0
    goodput: float = 0.0
    refused: float = 0.0
    late: float = 0.0
    wrong: float = 0.0
    lost: float = 0.0
    latencies: dict[str, list[float]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    generator_share: float = 0.0
    server_share: float = 0.0
    busy_share: float = 0.0
    lateness_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    kind: str
    due: float
    sent: float
    ended: float
    status: int
    right: bool


class _Client:
    """Connections to one port, each used again once it has an answer."""

    def __init__(self, port: int, patience_s: float, first_number: int) -> None:
        self._port, self._patience_s = port, patience_s
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._numbers = itertools.count(first_number)

    async def ask(self, request: Request, due: float) -> _Asked:
        """Send a request; what became of it."""
        sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience_s):
                status, body = await self._answer(request.pieces)
        except (OSError, EOFError, TimeoutError):
            status, body = NO_ANSWER, b""
        ended = time.perf_counter()
        right = 200 <= status < 300 and all(part in body for part in request.right)
        return _Asked(request.kind, due, sent, ended, status, right)

    async def close(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, pieces: Sequence[bytes]) -> tuple[int, bytes]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                break
            writer.close()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            number = f"{next(self._numbers):0{len(TOKEN)}d}".encode()
            writer.writelines([pieces[0], *itertools.chain(*((number, one) for one in pieces[1:]))])
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].split("\r\n", 1)[0])
            body = await reader.readexactly(length)
        except BaseException:
            writer.transport.abort()
            raise
        if "connection: close" in head:
            writer.transport.abort()
        else:
            self._idle.append((reader, writer))
        return int(head.split(" ", 2)[1]), body


async def run(job: Job) -> Outcome:
    """Make the load, and wait for every answer or its client's going."""
    rng = np.random.default_rng(job.seed)
    whole = job.warm_up_s + job.seconds
    client, asked = _Client(job.port, job.patience_s, job.seed * 10**9), list[_Asked]()
    shares = np.array(job.shares) / sum(job.shares)

    def drawn() -> Iterator[Request]:
        while True:
            for number in rng.choice(len(job.requests), 1000, p=shares):
                yield job.requests[number]

    requests = drawn()
    began = time.perf_counter() + 0.1
    marks = asyncio.create_task(_marks(job, began))

    async def arrive(request: Request, due: float) -> None:
        asked.append(await client.ask(request, due))

    async def ask_in_turn() -> None:
        while (now := time.perf_counter()) < began + whole:
            await arrive(next(requests), now)

    async with asyncio.TaskGroup() as users:
        if job.n_clients:
            for _ in range(job.n_clients):
                users.create_task(ask_in_turn())
        else:
            n = int(rng.poisson(job.rate * whole))
            for due in began + np.sort(rng.uniform(0, whole, n)):
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                users.create_task(arrive(next(requests), float(due)))
    await client.close()
    return _outcome(job, asked, began, await marks)


async def _marks(job: Job, began: float) -> tuple[float, ...]:
    """Shares of a processor: this process, the server, and all that ran on these processors."""
    await asyncio.sleep(max(0.0, began + job.warm_up_s - time.perf_counter()))
    before = await asyncio.to_thread(_computed, job.server)  # it looks at all processes
    await asyncio.sleep(max(0.0, began + job.warm_up_s + job.seconds - time.perf_counter()))
    after = await asyncio.to_thread(_computed, job.server)
    taken = [end - start for start, end in zip(before, after, strict=True)]
    return tuple(seconds / taken[-1] for seconds in taken[:-1])


def _computed(server: int) -> tuple[float, ...]:
    """Seconds that were computed until now, by whom, and the clock."""
    busy = 0.0
    for number in os.sched_getaffinity(0):
        times = psutil.cpu_times(percpu=True)[number]
        busy += sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
    return time.process_time(), processor_seconds(server), busy, time.perf_counter()


def _outcome(job: Job, asked: Sequence[_Asked], began: float, shares: Sequence[float]) -> Outcome:
    """Count what ended while it was measured, and the latencies of what was due then."""
    start = began + job.warm_up_s
    end = start + job.seconds
    generator, server, busy = shares
    outcome = Outcome(generator_share=generator, server_share=server, busy_share=busy)
    counts: Counter[str] = Counter()
    for one in asked:
        if start <= one.ended < end:
            counts[_kind_of(one, job.deadline_s)] += 1
    due = [one for one in asked if start <= one.due < end]
    outcome.statuses = dict(Counter(str(one.status) for one in due))
    for one in due:
        if one.right:
            outcome.latencies.setdefault(one.kind, []).append(one.ended - one.due)
    for name, n in counts.items():
        setattr(outcome, name, n / job.seconds)
    outcome.offered = len(due) / job.seconds
    outcome.lateness_s = float(np.quantile([one.sent - one.due for one in due] or [0.0], 0.99))
    return outcome


def _kind_of(one: _Asked, deadline_s: float) -> str:
    """Return the field of `Outcome` that counts it."""
    if one.right:
        return "goodput" if one.ended - one.due <= deadline_s else "late"
    if one.status == NO_ANSWER:
        return "lost"
    return "refused" if one.status >= 400 else "wrong"


def main() -> None:
    """Make the load that a file describes."""
    job: Job = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps(asdict(uvloop.run(run(job)))))


if __name__ == "__main__":
    main()
