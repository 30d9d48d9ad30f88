"""Load as users make it: latency and goodput against the requests that are due a second.

Requests arrive as they do in the world, without waiting for anybody's answer (`load.generator`), at
rates up to five times what the service can do. Photographs have 50 kB, 300 kB and 12 megapixels.
*Goodput* is the right answers a second that came within `DEADLINE_S` of the moment when their
request was due; right is an answer whose first result is that of the same search in this process.

- ``vouch``: searches, a tenth of them under a filter, with writes and batches among them;
- beside it, searches alone: ``vouch_searches``, FastAPI with the encoder in torch and in ONNX
  Runtime, and LitServe, which comes from PyPI into an environment of its own.

Server on one core, generator on the other. Capacity is what 32 clients get who each wait for their
answers; of ours it is measured in turns with the other rates. `load.cores` asks a service with two
cores and one with one.

    python -m tests.benchmarks.bench_load

prints, and writes build/bench-load.json and a chart.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.bench_throughput import BUNDLES, SEARCH, built
from tests.benchmarks.load import cores
from tests.benchmarks.load.chart import chart
from tests.benchmarks.load.generator import Job, Outcome
from tests.benchmarks.load.questions import Questions
from tests.benchmarks.load.servers import (
    PLAIN,
    Server,
    install_litserve,
    processor_seconds,
    server,
)
from tests.benchmarks.measured import record_figures

BUILD = Path("build")
WORK = BUILD / "bench-load"

DEADLINE_S = 2.0
PATIENCE_S = 10.0
N_CLIENTS = 32
WARM_UP_S, SECONDS = 2.0, 8.0
N_ROUNDS = 3

SETTINGS = {"VOUCH_RECALIBRATE": "false", "VOUCH_CANARY_PERIOD_S": "3600"}
"""Of ours: nothing else computes."""

RATES = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Requests due, over the capacity."""
COMPARED = (0.5, 1.0, 2.0, 5.0)

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class System:
    """Something that is asked.

    Attributes
    ----------
    ready : path that is answered when it can be asked.
    asked : ``mixed`` requests, or ``searches`` alone.
    template : of the part of an answer that names its first result.
    """

    command: Sequence[str]
    ready: str
    path: str
    asked: str
    template: str
    rates: Sequence[float] = COMPARED


class Load:
    """Loads for one server.

    Parameters
    ----------
    core : of the generator.
    """

    def __init__(self, target: Server, system: System, questions: Questions, core: int) -> None:
        self._target, self._core = target, core
        make = getattr(questions, system.asked)
        self._requests, self._shares = make(system.path, system.template)
        self._seed = questions.seed

    def run(self, rate: float, n_clients: int = 0, seconds: float = SECONDS) -> Outcome:
        """Make it, and wait until the server has nothing left to do."""
        self._seed += 1
        job = Job(
            port=self._target.port,
            server=self._target.pid,
            requests=self._requests,
            shares=self._shares,
            rate=rate,
            n_clients=n_clients,
            warm_up_s=WARM_UP_S,
            seconds=seconds,
            deadline_s=DEADLINE_S,
            patience_s=PATIENCE_S,
            seed=self._seed,
        )
        found = generate(job, str(self._core))
        until_idle(self._target)
        return found

    def capacity(self) -> float:
        """Right answers a second to clients who wait for theirs."""
        found = self.run(0, N_CLIENTS)
        return found.goodput + found.late


def generate(job: Job, on: str) -> Outcome:
    """Run a load generator on some cores, as taskset has them."""
    file = WORK / "job.pickle"
    file.write_bytes(pickle.dumps(job))
    command = ["taskset", "-c", on, sys.executable, "-m", "tests.benchmarks.load.generator"]
    done = subprocess.run([*command, str(file)], check=True, stdout=subprocess.PIPE, text=True)
    return Outcome(**json.loads(done.stdout))


def until_idle(target: Server, patience_s: float = 120.0) -> None:
    """Wait until a server computes little: some work on for clients who have gone, and LitServe
    asks its queues a thousand times a second."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before = processor_seconds(target.pid)
        time.sleep(0.5)
        if processor_seconds(target.pid) - before < 0.15:
            return


def measure(seed: int) -> dict[str, Any]:
    """Everything that build/bench-load.json holds."""
    WORK.mkdir(parents=True, exist_ok=True)
    built()
    bundles = WORK / "bundles"
    shutil.rmtree(bundles, ignore_errors=True)
    shutil.copytree(BUNDLES, bundles)  # it is written to
    questions = Questions(bundles, seed)
    found: dict[str, Any] = {"deadline_s": DEADLINE_S, "seed": seed}
    found |= cores.measure(bundles, questions, generate)
    core, clients = sorted(os.sched_getaffinity(0))[:2]
    curves: dict[str, list[Point]] = {}
    for name, system in systems(bundles).items():
        with server(system.command, core, system.ready, SETTINGS) as target:
            rounds = N_ROUNDS if name == "vouch" else 1
            load = Load(target, system, questions, clients)
            figures, curves[name] = _curve(load, system.rates, rounds)
        suffix = "" if name == "vouch" else f"_{name}"
        found |= {f"{key}{suffix}": value for key, value in figures.items()}
    points = [point for curve in curves.values() for point in curve]
    found["generator_share_most"] = max(point["generator_share"] for point in points)
    found["generator_lateness_p99_ms_most"] = max(point["lateness_ms"] for point in points)
    return found | {"curves": curves}


def systems(bundles: Path) -> dict[str, System]:
    """Everything that is asked, by name."""
    ours = (sys.executable, "-m", "service", "--bundle", str(bundles))
    ranked, plain = '"rank":1,"id":"{id}"', '"results":[{{"id":"{id}"'
    found = {
        "vouch": System(ours, "/readyz", SEARCH, "mixed", ranked, RATES),
        "vouch_searches": System(ours, "/readyz", SEARCH, "searches", ranked),
    }
    for name, command in PLAIN.items():
        found[name] = System(command, "/docs", "/search", "searches", plain)
    python, version = install_litserve(BUILD / "litserve-search")
    command = (str(python), "-m", "tests.benchmarks.load.litserve_search", str(BUNDLES))
    found[f"litserve_{version}"] = System(command, "/health", "/predict", "searches", plain)
    return found


def _curve(load: Load, rates: Sequence[float], rounds: int) -> tuple[dict[str, float], list[Point]]:
    """Figures of a system, and a point for each rate."""
    load.capacity()  # warms up
    capacity = statistics.median(load.capacity() for _ in range(rounds))
    repeated = {1.0: [], 5.0: []}  # type: dict[float, list[Outcome]]
    for _ in range(rounds):
        for rate, outcomes in repeated.items():
            outcomes.append(load.run(rate * capacity))
    once = {rate: [load.run(rate * capacity)] for rate in rates if rate not in repeated}
    by_rate = dict(sorted({**once, **repeated}.items()))
    points = [_point(rate, outcomes) for rate, outcomes in by_rate.items()]
    pairs = list(zip(repeated[5.0], repeated[1.0], strict=True))
    figures = {
        "load_capacity_per_s": capacity,
        "goodput_at_5x": statistics.median(
            most.goodput / one.goodput if one.goodput else 0.0 for most, one in pairs
        ),
        "goodput_at_5x_by_processor_time": statistics.median(
            _by_processor(most) / _by_processor(one) if one.goodput else 0.0 for most, one in pairs
        ),
    }
    return figures, points


def _by_processor(outcome: Outcome) -> float:
    """Right answers in time, for each second that the server has computed."""
    return outcome.goodput / outcome.server_share


def _point(rate: float, outcomes: Sequence[Outcome]) -> Point:
    """Medians of runs at one rate; percentiles of all their latencies."""
    point: Point = {"over_capacity": rate}
    for name in ("offered", "goodput", "refused", "late", "wrong", "lost"):
        point[f"{name}_per_s"] = statistics.median(getattr(one, name) for one in outcomes)
    kinds = sorted({kind for one in outcomes for kind in one.latencies})
    latencies = {
        kind: [s for one in outcomes for s in one.latencies.get(kind, ())] for kind in kinds
    }
    latencies["all"] = [s for seconds in latencies.values() for s in seconds]
    for kind, seconds in latencies.items():
        if seconds:
            point[f"{kind.replace(' ', '_')}_ms"] = {
                f"p{percent}": 1000 * float(np.percentile(seconds, percent))
                for percent in (50, 95, 99)
            }
    point["server_share"] = statistics.median(one.server_share for one in outcomes)
    point["generator_share"] = max(one.generator_share for one in outcomes)
    point["lateness_ms"] = 1000 * max(one.lateness_s for one in outcomes)
    return point


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and of what is asked")
    parser.add_argument("--chart", type=Path, default=BUILD / "bench-load.svg", help="an SVG")
    options = parser.parse_args()
    found = measure(options.seed)
    text = json.dumps(found, indent=1, sort_keys=True)
    (BUILD / "bench-load.json").write_text(text + "\n", encoding="utf-8")
    chart(found["curves"]).savefig(options.chart)
    print(text)
    record_figures("load", found, globals())


if __name__ == "__main__":
    main()
