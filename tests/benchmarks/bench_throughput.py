"""Queries a second under load, against the machine's limit and against the obvious way to do it.

On one core, with the same photographs, the same trunk (MobileNetV2 at 224 px) and gallery:

- *bare loop*: `Retriever.search` in a loop: decode, ONNX session, search and decision, no service,
  with the service's settings of the allocator, of large pages and of the garbage collector;
- *service*: `vouch-serve`, cache off, asked by 32 clients that run on another core;
- *plain FastAPI + torch*: an endpoint that does the same work with the encoder in torch, asked by
  the same 32 clients.

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
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from fastapi import FastAPI, UploadFile

from model_store import Retriever, open_bundle
from model_store.images import decode_image
from model_store.threads import one_blas_thread
from service.processes.memory import (
    freeze_garbage,
    large_pages,
    raise_gc_threshold,
    tune_malloc,
)

WORK = Path("build/bench-throughput")
RUN, BUNDLES, IMAGES = WORK / "run", WORK / "bundles", WORK / "images"

N_CLIENTS = 32
N_ROUNDS = 9
N_QUERIES = 192
WARM_UP = 64
BOUNDARY = "vouch-benchmark"
LIMIT = 10
HERE = (sys.executable, "-m", "tests.benchmarks.bench_throughput")


def measure() -> dict[str, float]:
    """Ratios of queries a second, and what lies behind them."""
    core, clients = sorted(os.sched_getaffinity(0))[:2]
    built()
    files = [path.read_bytes() for path in sorted(IMAGES.rglob("*.*"))]
    rates: dict[str, list[float]] = {"bare": [], "service": [], "plain": []}
    computed: dict[str, list[float]] = {"bare": [], "service": [], "plain": []}
    latencies: dict[str, list[float]] = {"service": [], "plain": []}
    failed = 0
    os.sched_setaffinity(0, {clients})
    service = [sys.executable, "-m", "service", "--bundle", str(BUNDLES)]
    plain = [*HERE, "--plain"]
    with _server(service, core, "/readyz") as served, _server(plain, core, "/docs") as other:
        targets: dict[str, tuple[Server, str]] = {
            "service": (served, "/v1/galleries/caltech101_half/search"),
            "plain": (other, "/search"),
        }
        for _ in range(N_ROUNDS):
            rate, of_processor = _bare(core)
            rates["bare"].append(rate)
            computed["bare"].append(of_processor)
            for name, (server, path) in targets.items():
                _load(server.port, path, files, WARM_UP)
                before = server.processor_seconds()
                seconds, lost, taken = _load(server.port, path, files, N_QUERIES)
                computed[name].append((server.processor_seconds() - before) / N_QUERIES)
                failed += lost
                rates[name].append((N_QUERIES - lost) / taken)
                latencies[name] += seconds
    found = {
        "throughput_over_bare_loop": _median_ratio(rates["service"], rates["bare"]),
        "throughput_over_bare_loop_by_processor_time": _median_ratio(
            computed["bare"], computed["service"]
        ),
        "throughput_over_plain_fastapi_torch": _median_ratio(rates["service"], rates["plain"]),
        "throughput_over_plain_fastapi_torch_by_processor_time": _median_ratio(
            computed["plain"], computed["service"]
        ),
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
    (WORK / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
    build_all(config, Run(RUN), BUNDLES)


def _bare(core: int) -> tuple[float, float]:
    """Queries a second without a service, in a process of its own, and its seconds for each."""
    command = ["taskset", "-c", str(core), *HERE, "--bare"]
    environment = _environment() | large_pages(os.environ)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
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


def _load(
    port: int, path: str, files: Sequence[bytes], n_queries: int
) -> tuple[list[float], int, float]:
    """Ask ``n_queries`` from `N_CLIENTS` clients; latencies, failures, and seconds in all."""
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
        await asyncio.gather(*(client() for _ in range(N_CLIENTS)))
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


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs, and where it listens."""

    pid: int
    port: int

    def processor_seconds(self) -> float:
        """Seconds of a processor that it and its children have taken, by the kernel's account."""
        process = psutil.Process(self.pid)
        times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
        return float(sum(one.user + one.system for one in times))


@contextmanager
def _server(command: Sequence[str], core: int, ready: str) -> Iterator[Server]:
    """A server on ``core``, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pinned = ["taskset", "-c", str(core), *command, "--port", str(port)]
    with subprocess.Popen(pinned, stderr=subprocess.DEVNULL, env=_environment()) as process:
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}"):
                        break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError(f"{command} did not start") from None
                    time.sleep(0.05)
            yield Server(process.pid, port)
        finally:
            process.terminate()


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "VOUCH_PROVIDER": "cpu",
        "VOUCH_ENCODER_THREADS": "1",
        "VOUCH_CACHE_BYTES": "0",
        "OMP_NUM_THREADS": "1",
    }


def _serve_plainly(port: int) -> None:
    """What one would write: FastAPI, a torch model, and the same search behind it."""
    import torch
    import uvicorn

    from index_builder.configuration.build import BuildConfig
    from index_builder.networks import load_encoder
    from index_builder.pipeline.run import Run
    from index_builder.posteriors import load_posterior
    from index_builder.posteriors.encoders import ProbabilisticEncoder
    from model_store.encoder.contract import Embeddings

    torch.set_num_threads(1)
    config = BuildConfig.model_validate_json((WORK / "config.json").read_text(encoding="utf-8"))
    run = Run(RUN)
    whole = open_bundle(BUNDLES, provider="cpu", threads=1).retriever
    network = ProbabilisticEncoder(
        load_encoder(config.network, run.checkpoint), load_posterior(run.posterior)
    ).eval()

    class TorchEncoder:
        fingerprint, metadata = whole.encoder.fingerprint, whole.encoder.metadata
        provider, dim = "torch", whole.encoder.dim
        n_features = whole.encoder.n_features

        def encode(self, images: Any, at_once: int | None = None) -> Embeddings:
            with torch.inference_mode():
                return Embeddings(*(part.numpy() for part in network(torch.from_numpy(images))))

        placement = None

        def close(self) -> None: ...

    retriever = Retriever(TorchEncoder(), whole.gallery, whole.calibration)
    app = FastAPI()

    @app.post("/search")
    def search(image: UploadFile) -> dict[str, Any]:
        smallest_side = retriever.encoder.metadata.preprocessing.smallest_side
        decoded = decode_image(image.file.read(), smallest_side=smallest_side)
        prepared = retriever.prepare(decoded)
        answer = retriever.find(retriever.embed(prepared[None].copy())[0], LIMIT)
        return {
            "verdict": answer.decision.verdict,
            "results": [
                {"id": match.item.id, "probability": match.match_probability}
                for match in answer.matches
            ],
        }

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.bare:
        print(*_bare_loop())
    elif options.plain:
        _serve_plainly(options.port)
    else:
        print(json.dumps(measure(), indent=1))


if __name__ == "__main__":
    main()
