"""Two cores over one: a service that has both, and one that has one, in turns."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.bench_throughput import IMAGES, SEARCH, bare
from tests.benchmarks.load.generator import Job, Outcome
from tests.benchmarks.load.questions import Questions
from tests.benchmarks.load.servers import Server, server, until_all_answer
from tests.end_to_end.processes import Redis

N_ROUNDS = 3
N_CLIENTS = 32
SECONDS = 4.0
SETTINGS = {"VOUCH_ENCODER_THREADS": "", "VOUCH_CANARY_PERIOD_S": "3600"}


def measure(
    bundles: Path, questions: Questions, generate: Callable[[Job, str], Outcome]
) -> dict[str, float]:
    """Answers a second with two cores over those with one, small photographs and 12 megapixels.

    Once with the default settings, and once (``…_each``) as a service uses cores that has a Redis:
    by as many workers.

    The clients run on the same cores as the service, so that either pays for them alike. So do all
    others on this machine: what they take of the cores is left out, as if the service had had
    fewer (``…_by_clock``: as it came).
    """
    first, second = sorted(os.sched_getaffinity(0))[:2]
    found = {"cores_2_over_1_bound": _bound(first, second)}
    command = [sys.executable, "-m", "service", "--bundle", str(bundles)]
    with TemporaryDirectory() as folder, Redis(Path(folder) / "redis.log") as redis:
        shared = {**SETTINGS, "VOUCH_REDIS_URL": redis.url}
        each = {**shared, "VOUCH_PROCESSES": "2"}
        for suffix, settings, both in (("", SETTINGS, SETTINGS), ("_each", shared, each)):
            with (
                server(command, first, "/readyz", settings) as one,
                server(command, f"{first},{second}", "/readyz", both) as two,
            ):
                until_all_answer(two, 2 if suffix else 1)
                for size in ("small", "phone"):
                    name = "cores_2_over_1" + ("" if size == "small" else f"_{size}") + suffix
                    jobs = [_job(target, questions, size) for target in (one, two)]
                    found |= _figures(name, jobs, (first, second), generate)
    return found


def _figures(
    name: str,
    jobs: Sequence[Job],
    cores: tuple[int, int],
    generate: Callable[[Job, str], Outcome],
) -> dict[str, float]:
    """Let the service on one core, and that on both, answer in turns."""
    on_one, on_both = jobs
    rates, clocked = list[tuple[float, float]](), list[tuple[float, float]]()
    for number in range(N_ROUNDS):
        alone = generate(replace(on_one, seed=2 * number), str(cores[0]))
        together = generate(replace(on_both, seed=2 * number + 1), f"{cores[0]},{cores[1]}")
        clocked.append((together.goodput, alone.goodput))
        rates.append((2 * together.goodput / _left(together, 2), alone.goodput / _left(alone, 1)))
    return {
        name: statistics.median(more / less for more, less in rates),
        f"{name}_by_clock": statistics.median(more / less for more, less in clocked),
        f"{name}_alone_per_s": statistics.median(less for _, less in rates),
    }


def _bound(first: int, second: int) -> float:
    """Queries a second of two loops without a service, one on each core, over those of one alone.

    What it lacks to two the cores lose to each other: they share a cache, and the way to memory.
    """
    ratios = []
    with ThreadPoolExecutor(2) as both:
        for _ in range(N_ROUNDS):
            alone, _ = bare(first, IMAGES)
            together = both.map(partial(bare, images=IMAGES), (first, second))
            ratios.append(sum(rate for rate, _ in together) / alone)
    return statistics.median(ratios)


def _left(outcome: Outcome, cores: int) -> float:
    """Cores that others have left to the service and its clients."""
    others = outcome.busy_share - outcome.server_share - outcome.generator_share
    return cores - max(0.0, others)


def _job(target: Server, questions: Questions, size: str) -> Job:
    requests, shares = questions.searches(SEARCH, '"rank":1,"id":"{id}"')
    chosen = [number for number, one in enumerate(requests) if one.kind == f"search {size}"]
    return Job(
        port=target.port,
        server=target.pid,
        requests=[requests[number] for number in chosen],
        shares=[shares[number] for number in chosen],
        rate=0.0,
        n_clients=N_CLIENTS,
        warm_up_s=1.0,
        seconds=SECONDS,
        deadline_s=30.0,
        patience_s=30.0,
        seed=0,
    )
