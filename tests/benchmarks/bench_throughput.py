"""Queries a second under load, against the machine's limit and against the obvious way to do it.

On one core, with the same photographs, the same trunk (MobileNetV2 at 224 px) and gallery:

- *bare loop*: `Retriever.search` in a loop: decode, ONNX session, search and decision, no service,
  with the service's settings of the allocator, of large pages and of the garbage collector;
- *service*: `vouch-serve`, cache off, asked by 32 clients that run on another core;
- *plain FastAPI*: an endpoint that does the same work, asked by the same 32 clients; once with the
  encoder in torch, once with the service's own ONNX file. Once it does nothing with the image: what
  that costs and the loop's time together are the least that FastAPI can answer in (`…_bound`).

Each in turn, many times over, and compared within its round: the machine is slower at one moment
than at another. Where others use the same core, a service of several processes gets more of it than
a loop, or less: the processor time that a query takes in either is compared as well
(`…_by_processor_time`). Needs two cores, and VOUCH_DATA_DIR for images and weights; builds its
bundle once, in build/.

    python -m tests.benchmarks.bench_throughput
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from model_store import open_bundle
from model_store.threads import one_blas_thread
from service.processes.memory import (
    freeze_garbage,
    large_pages,
    raise_gc_threshold,
    tune_malloc,
)
from tests.benchmarks.load.servers import (
    NOTHING_DONE,
    PLAIN,
    Server,
    environment,
    processor_seconds,
    server,
)

WORK = Path("build/bench-throughput")
RUN, BUNDLES, IMAGES = WORK / "run", WORK / "bundles", WORK / "images"
CONFIG = WORK / "config.json"

N_CLIENTS = 32
N_ROUNDS = 9
N_QUERIES = 192
WARM_UP = 64
BOUNDARY = "vouch-benchmark"
LIMIT = 10
HERE = (sys.executable, "-m", "tests.benchmarks.bench_throughput")
SEARCH = "/v1/galleries/caltech101_half/search"


def measure() -> dict[str, float]:
    """Ratios of queries a second, and what lies behind them."""
    core, clients = sorted(os.sched_getaffinity(0))[:2]
    built()
    files = [path.read_bytes() for path in sorted(IMAGES.rglob("*.*"))]
    others = PLAIN | NOTHING_DONE
    rates: dict[str, list[float]] = {name: [] for name in ("bare", "service", *others)}
    computed: dict[str, list[float]] = {name: [] for name in rates}
    latencies: dict[str, list[float]] = {name: [] for name in ("service", *others)}
    failed = 0
    os.sched_setaffinity(0, {clients})
    service = [sys.executable, "-m", "service", "--bundle", str(BUNDLES)]
    with ExitStack() as running:
        targets: dict[str, tuple[Server, str]] = {
            "service": (running.enter_context(server(service, core, "/readyz")), SEARCH)
        }
        for name, command in others.items():
            targets[name] = running.enter_context(server(command, core, "/docs")), "/search"
        for _ in range(N_ROUNDS):
            rate, of_processor = _bare(core)
            rates["bare"].append(rate)
            computed["bare"].append(of_processor)
            for name, (asked, path) in targets.items():
                asked_by_clients(asked.port, path, files, WARM_UP)
                before = processor_seconds(asked.pid)
                seconds, lost, taken = asked_by_clients(asked.port, path, files, N_QUERIES)
                computed[name].append((processor_seconds(asked.pid) - before) / N_QUERIES)
                failed += lost
                rates[name].append((N_QUERIES - lost) / taken)
                latencies[name] += seconds
    found = {
        "throughput_over_bare_loop": _median_ratio(rates["service"], rates["bare"]),
        "throughput_over_bare_loop_by_processor_time": _median_ratio(
            computed["bare"], computed["service"]
        ),
        **{
            f"throughput_over_{name}": _median_ratio(rates["service"], rates[name])
            for name in PLAIN
        },
        **{
            f"throughput_over_{name}_by_processor_time": _median_ratio(
                computed[name], computed["service"]
            )
            for name in PLAIN
        },
        **bounds(computed),
        "throughput_failed": float(failed),
        **{f"throughput_{name}_per_s": statistics.median(each) for name, each in rates.items()},
        **{
            f"throughput_{name}_processor_ms": 1000 * statistics.median(each)
            for name, each in computed.items()
        },
    }
    for name, seconds in latencies.items():
        for percent in (50, 95, 99):
            found[f"throughput_{name}_p{percent}_ms"] = float(
                1000 * np.percentile(seconds, percent)
            )
    return found


def bounds(computed: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The largest ratios that a service with FastAPI can have, by processor time.

    It answers what the bare loop does, and takes uploads as an endpoint does that looks at none.
    """
    least = [
        bare + http
        for bare, http in zip(computed["bare"], computed["plain_fastapi_none"], strict=True)
    ]
    return {
        "throughput_over_bare_loop_bound": _median_ratio(computed["bare"], least),
        "throughput_over_plain_fastapi_onnx_bound": _median_ratio(
            computed["plain_fastapi_onnx"], least
        ),
    }


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def built() -> None:
    """The bundle that `vouch-build all --images` makes of Caltech-101, and its images."""
    if (BUNDLES / "CURRENT").exists():
        return
    from index_builder.configuration.photographs import photographs_config
    from index_builder.pipeline.run import Run
    from index_builder.pipeline.steps import build_all
    from tests.benchmarks.bench_zero_shot import WEIGHTS, unpacked

    data = Path(os.environ["VOUCH_DATA_DIR"])
    IMAGES.mkdir(parents=True, exist_ok=True)
    root = unpacked("caltech101_half", data, IMAGES)
    config = photographs_config(root, "mobilenet_v2", str(data / WEIGHTS), "caltech101_half")
    CONFIG.write_text(config.model_dump_json(), encoding="utf-8")
    build_all(config, Run(RUN), BUNDLES)


def _bare(core: int) -> tuple[float, float]:
    """Queries a second without a service, in a process of its own, and its seconds for each."""
    command = ["taskset", "-c", str(core), *HERE, "--bare"]
    variables = environment() | large_pages(os.environ)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    rate, of_processor = done.stdout.split()
    return float(rate), float(of_processor)


def _bare_loop() -> tuple[float, float]:
    tune_malloc()
    raise_gc_threshold()
    retriever = open_bundle(BUNDLES, provider="cpu", threads=1).retriever
    files = [path.read_bytes() for path in sorted(IMAGES.rglob("*.*"))]
    with one_blas_thread():
        for data in files[:WARM_UP]:
            retriever.search(data, LIMIT)
        freeze_garbage()
        started, computed = time.perf_counter(), time.process_time()
        for data in files[:N_QUERIES]:
            retriever.search(data, LIMIT)
    taken = time.perf_counter() - started
    return N_QUERIES / taken, (time.process_time() - computed) / N_QUERIES


def asked_by_clients(
    port: int, path: str, files: Sequence[bytes], n_queries: int, n_clients: int = N_CLIENTS
) -> tuple[list[float], int, float]:
    """Ask ``n_queries`` from ``n_clients`` clients; latencies, failures, and seconds in all."""
    queries = iter([files[i % len(files)] for i in range(n_queries)])
    seconds: list[float] = []
    failed = 0

    async def client() -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for data in queries:
            started = time.perf_counter()
            writer.write(_request(path, data))
            status = await _status(reader)
            seconds.append(time.perf_counter() - started)
            failed += status != 200
        writer.close()
        await writer.wait_closed()

    async def all_clients() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(n_clients)))
        return time.perf_counter() - started

    taken = asyncio.run(all_clients())
    return seconds, failed, taken


def _request(path: str, data: bytes) -> bytes:
    body = (
        (
            f"--{BOUNDARY}\r\n"
            'Content-Disposition: form-data; name="image"; filename="query"\r\n\r\n'
        ).encode()
        + data
        + f"\r\n--{BOUNDARY}--\r\n".encode()
    )
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    ).encode() + body


async def _status(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].split("\r\n", 1)[0])
    await reader.readexactly(length)
    return int(head.split(" ", 2)[1])


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    if options.bare:
        print(*_bare_loop())
    else:
        print(json.dumps(measure(), indent=1))


if __name__ == "__main__":
    main()
