"""A service under mixed load for a quarter of an hour, with trouble all along.

Callers search with images that are cached and images that are not, send bad ones, leave before
they are answered, and look at metrics. Meanwhile the bundle is exchanged every 30 s (by the
endpoint, by `CURRENT`, by rolling back) and Redis is killed and started again every 60 s. Every
good request must be answered with what its bundle answers when nothing else happens; memory, file
descriptors and threads must not grow.

    python -m tests.torture.soak BUNDLE [--minutes 15]

Prints its figures, writes them to build/soak.json, and exits with 1 if anything was amiss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

from model_store import open_bundle
from model_store.bundles.directory import activate, bundle_ids
from tests.end_to_end.load import sent
from tests.end_to_end.processes import Redis, Service, free_port
from tests.end_to_end.questions import bad_images, content, search, unseen
from tests.support.bundle_copies import republished

BUILD = Path("build")
MIB = 2**20

N_CALLERS = 6
N_PICTURES = 64
SWAP_EVERY_S = 30.0
REDIS_EVERY_S = 60.0
SAMPLE_EVERY_S = 2.0
WARM_UP_SHARE = 0.25
"""Of the time: threads, connections and caches come into being while they are first used."""

N_FIRST_SWAPS = 20
"""Before the clock starts: after so many the C library's heap has taken the size it keeps."""

NEGLIGIBLE_PER_MINUTE = 0.001
"""Of the level: what grows by less is flat, however smoothly it grows. The drift test, for one,
remembers each of 10,000 images before it begins anew, which is 1.3 MiB."""

SHORTEST_MINUTES = 3.0
"""Below it there are too few exchanges of the bundle to tell growth from noise."""

LONG = {"samples", "failed_at_s"}
"""What is written, and not printed."""

MIX = {"known": 0.4, "unseen": 0.4, "bad": 0.1, "hasty": 0.05, "metrics": 0.05}
"""Share of each kind of request."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The service and all its processes at one moment."""

    seconds: float
    rss_mib: float
    files: int
    threads: int
    processes: int


class Soak:
    """What is asked, and what becomes of it."""

    def __init__(self, service: Service, root: Path, pictures: list[bytes]) -> None:
        self.service = service
        self.root = root
        self.pictures = pictures
        self.alone: dict[str, list[dict[str, Any]]] = {}
        self.over = threading.Event()
        self.begun = time.monotonic()
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[float, str]] = []
        self.samples: list[Sample] = []

    def learn(self) -> None:
        """What each bundle answers while nothing else happens; and what exchanges cost once."""
        for bundle_id in bundle_ids(self.root):
            self._activate(bundle_id)
            answers = [self.service.answer(picture, limit=5) for picture in self.pictures]
            self.alone[bundle_id] = [content(answer) for answer in answers]
        for bundle_id in [*self.alone] * (N_FIRST_SWAPS // 2):
            self._activate(bundle_id)
            self.service.answer(unseen(self.pictures[0]))

    def call(self, seed: int) -> None:
        """One caller's life."""
        rng = np.random.default_rng(seed)
        bad = bad_images()
        with httpx2.Client(
            base_url=self.service.http.base_url, timeout=60, trust_env=False
        ) as client:
            while not self.over.is_set():
                kind = str(rng.choice(list(MIX), p=list(MIX.values())))
                number = int(rng.integers(len(self.pictures)))
                picture = self.pictures[number]
                self.counts[kind] += 1
                if kind == "bad":
                    image, status = bad[int(rng.integers(len(bad)))]
                    self._expect(search(client, image).status_code, status)
                elif kind == "hasty":
                    connection = sent(self.service, unseen(picture))
                    time.sleep(float(rng.exponential(0.01)))
                    connection.close()
                elif kind == "metrics":
                    self._expect(client.get("/metrics").status_code, 200)
                else:
                    self._ask(client, number, picture if kind == "known" else unseen(picture))

    def _ask(self, client: httpx2.Client, number: int, image: bytes) -> None:
        started = time.perf_counter()
        try:
            response = search(client, image, limit=5)
        except httpx2.TransportError as error:
            self._fail(repr(error))
            return
        self.seconds.append(time.perf_counter() - started)
        if response.status_code != 200:
            self._fail(f"{response.status_code} {response.json()['code']}")
            return
        answer = content(response.json())
        self.counts[response.json()["cache"]] += 1
        if answer != self.alone[answer["bundle"]][number]:
            self._fail("another answer than alone")

    def _expect(self, status: int, wanted: int) -> None:
        if status != wanted:
            self._fail(f"{status} where {wanted} was wanted")

    def _fail(self, how: str) -> None:
        self.failures.append((round(self._now(), 1), how))

    def swap(self) -> None:
        """Exchange the bundle now and then, in each of the ways there are."""
        first, second = self.alone
        ways: list[Callable[[], None]] = [
            lambda: self._activate(first),
            lambda: self._activate(second),
            lambda: self._post("rollback"),
            lambda: activate(self.root, second),
        ]
        for way in itertools.cycle(ways):
            if self.over.wait(SWAP_EVERY_S):
                return
            way()
            self.counts["swaps"] += 1

    def _activate(self, bundle_id: str) -> None:
        self._post(f"{bundle_id}/activate")

    def _post(self, action: str) -> None:
        path = f"/v1/galleries/digits/bundles/{action}"
        self.service.http.post(path).raise_for_status()

    def restart_redis(self, port: int, log: Path) -> None:
        """Keep a Redis server, and kill it now and then."""
        while not self.over.is_set():
            with Redis(log, port):
                self.over.wait(REDIS_EVERY_S)
            self.counts["redis ends"] += 1
            self.over.wait(2)

    def watch(self) -> None:
        """Sample what the service takes of the machine."""
        while not self.over.wait(SAMPLE_EVERY_S):
            with suppress(psutil.NoSuchProcess):  # one ended while it was looked at
                self.samples.append(taken(self.service.popen.pid, self._now()))

    def _now(self) -> float:
        return time.monotonic() - self.begun

    def run(self, seconds: float, redis_port: int, redis_log: Path) -> None:
        """Let everything happen for so long."""
        self.begun = time.monotonic()
        with ThreadPoolExecutor(N_CALLERS + 3) as threads:
            work = [threads.submit(self.call, seed) for seed in range(N_CALLERS)]
            work += [threads.submit(self.swap), threads.submit(self.watch)]
            work.append(threads.submit(self.restart_redis, redis_port, redis_log))
            while self._now() < seconds and not any(one.done() for one in work):
                time.sleep(0.5)
            self.over.set()
        for one in work:
            one.result()


def taken(pid: int, now: float) -> Sample:
    """What a process and its descendants take at this moment."""
    parent = psutil.Process(pid)
    tree = [parent, *parent.children(recursive=True)]
    return Sample(
        now,
        sum(process.memory_info().rss for process in tree) / MIB,
        sum(process.num_fds() for process in tree),
        sum(process.num_threads() for process in tree),
        len(tree),
    )


def trend(samples: list[Sample], name: str) -> dict[str, float]:
    """Growth of a quantity, a minute, and twice its standard error.

    Samples between two exchanges of the bundle are of the same processes and not independent:
    their median counts as one.
    """
    periods: dict[int, list[Sample]] = {}
    for sample in samples:
        periods.setdefault(int(sample.seconds // SWAP_EVERY_S), []).append(sample)
    groups = periods.values()
    minutes = np.array([np.mean([one.seconds for one in some]) for some in groups]) / 60
    values = np.array([np.median([getattr(one, name) for one in some]) for some in groups])
    found = {"first": float(values[0]), "last": float(values[-1]), "n": len(values)}
    (slope, _), covariance = np.polyfit(minutes, values, 1, cov=True)
    return {**found, "per_minute": float(slope), "noise": 2 * float(np.sqrt(covariance[0, 0]))}


def report(soak: Soak, minutes: float) -> dict[str, Any]:
    """The figures."""
    settled = [sample for sample in soak.samples if sample.seconds > WARM_UP_SHARE * 60 * minutes]
    trends = {name: trend(settled, name) for name in ("rss_mib", "files", "threads")}
    flat = {
        name: one["per_minute"] <= max(one["noise"], NEGLIGIBLE_PER_MINUTE * one["first"])
        for name, one in trends.items()
    }
    quantiles = (1000 * np.percentile(soak.seconds, [50, 95, 99, 100])).round(2).tolist()
    return {
        "minutes": minutes,
        "requests": dict(soak.counts),
        "good_answered": len(soak.seconds),
        "failed": len(soak.failures),
        "failures": Counter(how for _, how in soak.failures),
        "failed_at_s": soak.failures[:100],
        "latency_ms": dict(zip(("p50", "p95", "p99", "max"), quantiles, strict=True)),
        "trends": trends,
        "flat": flat,
        "passed": not soak.failures and all(flat.values()),
        "samples": [asdict(sample) for sample in soak.samples],
    }


def main() -> None:
    """Soak, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    options = parser.parse_args()
    if options.minutes < SHORTEST_MINUTES:
        parser.error(f"growth cannot be judged in less than {SHORTEST_MINUTES:g} minutes")
    BUILD.mkdir(exist_ok=True)
    bundle = open_bundle(options.bundle, "cpu")
    gallery = bundle.retriever.gallery
    rows = np.random.default_rng(0).permutation(gallery.n_items)[:N_PICTURES]
    pictures = [gallery.thumbnail(item.id).data for item in gallery.items(rows)]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "bundles"
        shutil.copytree(bundle.directory, root / bundle.directory.name)
        republished(bundle.directory, root, description="The same, once more.")
        settings = {
            "VOUCH_REDIS_URL": f"redis://127.0.0.1:{port}/0",
            "VOUCH_CANARY_PERIOD_S": "2",
        }
        with Service(root, Path(folder) / "service.log", settings) as service:
            soak = Soak(service, root, pictures)
            soak.learn()
            soak.run(60 * options.minutes, port, Path(folder) / "redis.log")
        shutil.copy(Path(folder) / "service.log", BUILD / "soak.log")
    figures = report(soak, options.minutes)
    (BUILD / "soak.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: figures[name] for name in figures if name not in LONG}, indent=1))
    sys.exit(not figures["passed"])


if __name__ == "__main__":
    main()
