"""What a busy machine does to the search stage of a served query.

`vouch-serve` is started as the README starts it, without environment variables that set threads.
The same queries are asked, cache hits all, while the machine is quiet and while other processes
keep every core busy, in turns. The stage's own time is what the answer says under `timing_ms`.
By default a bundle of photographs (512 dimensions) is built once; it needs VOUCH_DATA_DIR.

    python -m tests.benchmarks.bench_busy [BUNDLE]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from model_store import open_bundle
from tests.benchmarks.bench_http import ask, server, some_images

N_ROUNDS = 5
N_QUERIES = 80
WARM_UP = 20
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def measure(bundle: Path) -> dict[str, float]:
    """Medians of the search stage in milliseconds, and their ratio."""
    for name in THREAD_VARIABLES:
        os.environ.pop(name, None)
    opened = open_bundle(bundle, provider="cpu")
    images = some_images(opened.retriever.encoder.metadata.preprocessing.height)[:N_QUERIES]
    path = f"/v1/galleries/{opened.name}/search"
    stages: dict[str, list[float]] = {"quiet": [], "busy": []}
    with server(bundle) as (port, _):
        connection = HTTPConnection("127.0.0.1", port)
        for data in [*images, *images[:WARM_UP]]:
            ask(connection, path, data)
        for _ in range(N_ROUNDS):
            stages["quiet"] += _search_stages(connection, path, images)
            with busy_cores():
                stages["busy"] += _search_stages(connection, path, images)
    median = {name: statistics.median(values) for name, values in stages.items()}
    return {
        "search_busy_over_quiet": median["busy"] / median["quiet"],
        "search_quiet_p50_ms": median["quiet"],
        "search_busy_p50_ms": median["busy"],
    }


def _search_stages(connection: HTTPConnection, path: str, images: list[bytes]) -> list[float]:
    """Milliseconds that the service spent on the search of each image."""
    found = []
    for data in images:
        timing = ask(connection, path, data)["timing_ms"]
        found.append(float(timing["search"]) + float(timing["decide"]))
        time.sleep(0.01)
    return found


@contextmanager
def busy_cores() -> Iterator[None]:
    """One process for each core that computes without end."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in os.sched_getaffinity(0)]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measured = measure(Path(sys.argv[1]))
    else:
        from tests.benchmarks.bench_throughput import BUNDLES, built

        built()
        measured = measure(BUNDLES)
    print(json.dumps(measured, indent=1))
