"""Queries a second under load, against the machine's limit and against the obvious way to do it.

On one core, with the same photographs, the same trunk (MobileNetV2 at 224 px) and gallery:

- *bare loop*: `Retriever.search` in a loop: decode, ONNX session, search and decision, no service,
  with the service's settings of the allocator, of large pages and of the garbage collector;
- *service*: `vouch-serve`, cache off, asked by 32 clients that run on another core;
- *plain FastAPI*: an endpoint that does the same work, asked by the same 32 clients; once with the
  encoder in torch, once with the service's own ONNX file. Once it does nothing with the image: what
  that costs and the loop's time together are the least that FastAPI can answer in (`…_bound`).

So with the photographs as they are, some 50 kB, and (`…_12mp_…`) enlarged to what a phone takes: 12
megapixels and some 2 MB, of which every decoder here reads no more than the encoder has use for.

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
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from model_store import open_bundle
from model_store.machine import (
    freeze_garbage,
    large_pages,
    one_blas_thread,
    raise_gc_threshold,
    tune_malloc,
)
from tests.benchmarks.load.photographs import photographs
from tests.benchmarks.load.servers import (
    NOTHING_DONE,
    PLAIN,
    Server,
    environment,
    processor_seconds,
    server,
)
from tests.benchmarks.measured import record_figures
from tests.benchmarks.preconditions import data_dir

WORK = Path("build/bench-throughput")
RUN, BUNDLES, IMAGES = WORK / "run", WORK / "bundles", WORK / "images"
PHONE_IMAGES = WORK / "phone"
CONFIG = WORK / "config.json"

N_CLIENTS = 32
N_ROUNDS = 9
N_QUERIES = 192
WARM_UP = 64
PHONE_STEP = 25
"""Of so many photographs one is enlarged."""
BOUNDARY = "vouch-benchmark"
LIMIT = 10
HERE = (sys.executable, "-m", "tests.benchmarks.bench_throughput")
SEARCH = "/v1/galleries/caltech101_half/search"


@dataclass(slots=True)
class Measured:
    """What one of those that answer has done in each round.

    Attributes
    ----------
    rates : queries a second.
    computed : seconds of a processor for each query.
    latencies : seconds, of all queries.
    failed : queries that were not answered.
    """

    rates: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    failed: int = 0


def measure() -> dict[str, float]:
    """Ratios of queries a second, and what lies behind them."""
    core, clients = sorted(os.sched_getaffinity(0))[:2]
    built()
    pictures = sorted(IMAGES.rglob("*.*"))
    photographs(pictures[::PHONE_STEP], "phone", PHONE_IMAGES)
    os.sched_setaffinity(0, {clients})
    service = [sys.executable, "-m", "service", "--bundle", str(BUNDLES)]
    with ExitStack() as running:
        targets: dict[str, tuple[Server, str]] = {
            "service": (running.enter_context(server(service, core, "/readyz")), SEARCH)
        }
        for name, command in (PLAIN | NOTHING_DONE).items():
            targets[name] = running.enter_context(server(command, core, "/docs")), "/search"
        small = _rounds(targets, IMAGES, core)
        compared = {name: targets[name] for name in ("service", "plain_fastapi_onnx")}
        phone = _rounds(compared, PHONE_IMAGES, core)
    return (
        _figures("throughput", small)
        | bounds({name: each.computed for name, each in small.items()})
        | _figures("throughput_12mp", phone)
    )


def _rounds(
    targets: Mapping[str, tuple[Server, str]], images: Path, core: int
) -> dict[str, Measured]:
    """Ask the bare loop and each of the ``targets`` in turn, many times over."""
    files = read_images(images)
    found = {name: Measured() for name in ("bare", *targets)}
    for _ in range(N_ROUNDS):
        rate, of_processor = bare(core, images)
        found["bare"].rates.append(rate)
        found["bare"].computed.append(of_processor)
        for name, (asked, path) in targets.items():
            one = found[name]
            asked_by_clients(asked.port, path, files, WARM_UP)
            before = processor_seconds(asked.pid)
            seconds, lost, taken = asked_by_clients(asked.port, path, files, N_QUERIES)
            one.computed.append((processor_seconds(asked.pid) - before) / N_QUERIES)
            one.rates.append((N_QUERIES - lost) / taken)
            one.latencies += seconds
            one.failed += lost
    return found


def _figures(prefix: str, measured: Mapping[str, Measured]) -> dict[str, float]:
    """The named ratios of the service to the others, and medians of all."""
    service, others = measured["service"], dict(measured)
    del others["service"]
    others.pop("plain_fastapi_none", None)
    found = {}
    for name, other in others.items():
        ratio = f"{prefix}_over_{'bare_loop' if name == 'bare' else name}"
        found[ratio] = _median_ratio(service.rates, other.rates)
        found[f"{ratio}_by_processor_time"] = _median_ratio(other.computed, service.computed)
    found[f"{prefix}_failed"] = float(sum(each.failed for each in measured.values()))
    for name, each in measured.items():
        found[f"{prefix}_{name}_per_s"] = statistics.median(each.rates)
        found[f"{prefix}_{name}_processor_ms"] = 1000 * statistics.median(each.computed)
        for percent in (50, 95, 99) if each.latencies else ():
            found[f"{prefix}_{name}_p{percent}_ms"] = float(
                1000 * np.percentile(each.latencies, percent)
            )
    return found


def read_images(folder: Path) -> list[bytes]:
    """The image files of a folder, in the order of their paths."""
    return [path.read_bytes() for path in sorted(folder.rglob("*.*"))]


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
    from index_builder.configuration.build import encoder_config
    from index_builder.encoders import resolve_encoder
    from index_builder.pipeline.build import build_all
    from index_builder.pipeline.run import Run
    from tests.benchmarks.photographs import unpacked

    data = data_dir()
    IMAGES.mkdir(parents=True, exist_ok=True)
    root = unpacked("caltech101_half", data, IMAGES)
    encoder = resolve_encoder(None, IMAGES.parent / "encoders")
    config = encoder_config(root, encoder, "caltech101_half")
    CONFIG.write_text(config.model_dump_json(), encoding="utf-8")
    build_all(config, Run(RUN), BUNDLES)


def bare(core: int, images: Path) -> tuple[float, float]:
    """Queries a second without a service, in a process of its own, and its seconds for each."""
    command = ["taskset", "-c", str(core), *HERE, "--bare", str(images)]
    variables = environment() | large_pages(os.environ)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    rate, of_processor = done.stdout.split()
    return float(rate), float(of_processor)


def _bare_loop(images: Path) -> tuple[float, float]:
    tune_malloc()
    raise_gc_threshold()
    retriever = open_bundle(BUNDLES, provider="cpu", threads=1).retriever
    files = read_images(images)
    with one_blas_thread():
        for data in islice(cycle(files), WARM_UP):
            retriever.search(data, LIMIT)
        freeze_garbage()
        started, computed = time.perf_counter(), time.process_time()
        for data in islice(cycle(files), N_QUERIES):
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
    parser.add_argument("--bare", type=Path, help="a folder of images")
    options = parser.parse_args()
    if options.bare:
        print(*_bare_loop(options.bare))
    else:
        found = measure()
        print(json.dumps(found, indent=1))
        record_figures("throughput", found, globals())


if __name__ == "__main__":
    main()
