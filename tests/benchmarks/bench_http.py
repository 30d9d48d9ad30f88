"""What HTTP, cache and threads add to the pipeline itself: one server process, one client, in turn.

Every image is asked once over HTTP and once in this process, alternating, so that a slow moment of
the machine falls on both. The Fashion-MNIST bundle has a tiny network, so that nearly everything
measured is the service's own.

    python -m tests.benchmarks.bench_http BUNDLE
"""

from __future__ import annotations

import io
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from model_store import open_bundle

N_IMAGES = 300
WARM_UP = 30
BOUNDARY = "vouch-benchmark"


def measure(bundle: Path) -> dict[str, float]:
    """Medians in milliseconds, and their ratios."""
    retriever = open_bundle(bundle, provider="cpu").retriever
    images = some_images(retriever.encoder.metadata.preprocessing.height)
    seconds: dict[str, list[float]] = {"in_process": [], "http_miss": [], "http_hit": []}
    with server(bundle) as (port, ready_after):
        connection = HTTPConnection("127.0.0.1", port)
        path = f"/v1/galleries/{open_bundle(bundle).name}/search"
        for number, data in enumerate(images):
            timed = {}
            started = time.perf_counter()
            retriever.search(data)
            timed["in_process"] = time.perf_counter() - started
            time.sleep(0.005)  # ONNX Runtime's threads spin for a moment after each call
            for name, outcome in (("http_miss", "miss"), ("http_hit", "hit")):
                started = time.perf_counter()
                answer = ask(connection, path, data)
                timed[name] = time.perf_counter() - started
                if answer["cache"] != outcome:
                    raise RuntimeError(f"wanted a {outcome}, got {answer['cache']}")
                time.sleep(0.005)
            if number >= WARM_UP:
                for name, value in timed.items():
                    seconds[name].append(value)
    median = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    return {
        "http_miss_over_inprocess_p50": median["http_miss"] / median["in_process"],
        "cache_hit_over_miss_p50": median["http_hit"] / median["http_miss"],
        "in_process_p50_ms": median["in_process"],
        "http_miss_p50_ms": median["http_miss"],
        "http_hit_p50_ms": median["http_hit"],
        "ready_after_s": ready_after,
        "n_items": float(retriever.gallery.n_items),
    }


def some_images(side: int) -> list[bytes]:
    """Distinct image files, with a warm-up's first."""
    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(N_IMAGES + WARM_UP):
        buffer = io.BytesIO()
        small = generator.integers(0, 256, (7, 7), dtype=np.uint8)
        Image.fromarray(small).resize((side, side)).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    return encoded


def ask(connection: HTTPConnection, path: str, data: bytes) -> dict[str, Any]:
    """Return the answer of the service to one image."""
    head = (
        f"--{BOUNDARY}\r\n"
        'Content-Disposition: form-data; name="image"; filename="query.png"\r\n'
        "Content-Type: image/png\r\n\r\n"
    )
    body = head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    connection.request("POST", path, body, headers)
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer


@contextmanager
def server(bundle: Path) -> Iterator[tuple[int, float]]:
    """A real `vouch-serve`, its port, and how long it took to be ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "service", "--bundle", str(bundle), "--port", str(port)]
    environment = {**os.environ, "VOUCH_PROVIDER": "cpu"}
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
                        break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError("vouch-serve did not start") from None
                    time.sleep(0.02)
            yield port, time.perf_counter() - started
        finally:
            process.terminate()


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=1))
