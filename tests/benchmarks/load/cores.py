"""Two cores over one: a service that has both, and one that has one, in turns."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.benchmarks.bench_throughput import IMAGES, SEARCH, bare
from tests.benchmarks.load.generator import Job, Outcome
from tests.benchmarks.load.questions import Questions
from tests.benchmarks.load.servers import Server, server

N_ROUNDS = 3
N_CLIENTS = 32
SECONDS = 4.0
SETTINGS = {"VOUCH_ENCODER_THREADS": "", "VOUCH_CANARY_PERIOD_S": "3600"}


def measure(
    bundles: Path, questions: Questions, generate: Callable[[Job, str], Outcome]
) -> dict[str, float]:
    """Answers a second with two cores over those with one, small photographs and 12 megapixels.

    The clients run on the same cores as the service, so that either pays for them alike. So do all
    others on this machine: what they take of the cores is left out, as if the service had had
    fewer (``…_by_clock``: as it came).
    """
    first, second = sorted(os.sched_getaffinity(0))[:2]
    both = f"{first},{second}"
    command = [sys.executable, "-m", "service", "--bundle", str(bundles)]
    found = {}
    with (
        server(command, first, "/readyz", SETTINGS) as one,
        server(command, both, "/readyz", SETTINGS) as two,
    ):
        for size in ("small", "phone"):
            rates: list[tuple[float, float]] = []
            clocked: list[tuple[float, float]] = []
            for number in range(N_ROUNDS):
                alone = generate(_job(one, questions, size, number), str(first))
                together = generate(_job(two, questions, size, number), both)
                clocked.append((together.goodput, alone.goodput))
                rates.append(
                    (2 * together.goodput / _left(together, 2), alone.goodput / _left(alone, 1))
                )
            name = "cores_2_over_1" if size == "small" else f"cores_2_over_1_{size}"
            found[name] = statistics.median(more / less for more, less in rates)
            found[f"{name}_by_clock"] = statistics.median(more / less for more, less in clocked)
            found[f"{name}_alone_per_s"] = statistics.median(less for _, less in rates)
    return found | {"cores_2_over_1_bound": _bound(first, second)}


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


def _job(target: Server, questions: Questions, size: str, seed: int) -> Job:
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
        seed=seed,
    )
