"""The service's images a second over the encoder's alone, both on one provider.

`vouch-serve` with batches of one size, filled up, without a cache, asked by clients that do not
pause. Its decoders take the processor's cores, all of them, beside clients and search.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE, read_manifest
from model_store.encoder.onnx import OnnxEncoder
from model_store.machine import Provider
from service.encoding.batching import blank_images
from tests.benchmarks.bench_throughput import asked_by_clients
from tests.benchmarks.gpu.rows import Row, row, timed
from tests.benchmarks.load.servers import server


def serving_row(
    bundles: Path,
    provider: Provider,
    batch: int,
    photographs: Sequence[bytes],
    n_queries: int,
    seconds: float,
) -> Row:
    """The row of a provider and a size of batches; its ratio is ``over_encoder``."""
    of = {"kind": "service", "provider": provider, "batch": batch}
    return row(of, lambda: _measured(bundles, provider, batch, photographs, n_queries, seconds))


def _measured(
    bundles: Path,
    provider: Provider,
    batch: int,
    photographs: Sequence[bytes],
    n_queries: int,
    seconds: float,
) -> Row:
    directory = locate(bundles)
    encoder = OnnxEncoder(directory / ENCODER_FILE, provider)
    images = blank_images(encoder, batch)
    alone = timed(lambda: encoder.encode(images), batch, seconds)
    name = read_manifest(directory).gallery["name"]
    command = [sys.executable, "-m", "service", "--bundle", str(bundles)]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    settings = {
        "VOUCH_PROVIDER": provider,
        "VOUCH_ENCODER_THREADS": "0",
        "VOUCH_MAX_BATCH": str(batch),
        "VOUCH_PAD_BATCHES": "true",
        "VOUCH_MAX_IN_FLIGHT": str(4 * batch),
    }
    with server(command, cores, "/readyz", settings) as running:
        path = f"/v1/galleries/{name}/search"
        asked_by_clients(running.port, path, photographs, 2 * batch, 2 * batch)
        _, failed, took = asked_by_clients(running.port, path, photographs, n_queries, 2 * batch)
    rate = (n_queries - failed) / took
    return {
        "encoder_images_per_s": alone["images_per_s"],
        "service_images_per_s": rate,
        "over_encoder": rate / alone["images_per_s"],
        "failed": failed,
    }
