"""Indexing throughput against the machine's limit, on photographs, in one run.

The limit is what the cores could do if they did nothing but decode and encode: each core does so at
the same time, in a process of one thread that keeps its memory as `vouch-build` does, for cores
share caches and memory; the cores over the CPU seconds of one image then. Against it stands the
whole of `vouch-build index`: images over the seconds on the clock that the embedding took, with
hashes, thumbnails, processes and shards (`indexing_over_limit`), and over those of the command from
its start to the published bundle (`indexing_command_over_limit`). Whatever else the machine does
slows these and not the limit; `indexing_useful_cpu_share`, the CPU seconds of decoding and encoding
over all that embedding used, is how near it could come on a machine of its own.
`indexing_over_limit_bound` is how near an indexer comes that does nothing else but thumbnails and
hashes.

Both in turn, several times over, so that a slow moment of the machine falls on all. The photographs
are Caltech-101's, through MobileNetV2 at 224 px, each there `N_COPIES` times under names of its own
so that the start of the processes is not what is measured. Needs VOUCH_DATA_DIR.

    python -m tests.benchmarks.bench_indexing
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from index_builder.indexing.engines import open_encoder
from index_builder.vectors.encoder import batch_size
from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE
from model_store.images import decode_image, encode_thumbnail
from model_store.machine import OF_INDEXING, tune_malloc, usable_processors
from tests.benchmarks.bench_throughput import BUNDLES, IMAGES, built

N_COPIES = 3
N_ROUNDS = 3
N_LIMIT = 500
"""Images that the limit is measured with."""


def measure() -> dict[str, float]:
    """Throughputs, and their ratio to the limit."""
    built()
    cores = usable_processors()
    photographs = sorted(path for path in IMAGES.rglob("*.*") if path.is_file())
    encoder = locate(BUNDLES).resolve() / ENCODER_FILE
    limits, embeddings, commands, shares, bounds = [], [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "photographs"
        n_images = _copies(photographs, source)
        for number in range(N_ROUNDS):
            decoding, encoding, keeping = _cpu_seconds(photographs, encoder, cores)
            bounds.append((decoding + encoding) / (decoding + encoding + keeping))
            limits.append(cores / (decoding + encoding))
            seconds, embedded, computing = _indexed(
                source, encoder, Path(scratch) / f"run-{number}"
            )
            shares.append(n_images * (decoding + encoding) / computing)
            commands.append(n_images / seconds)
            embeddings.append(n_images / embedded)
    limit = statistics.median(limits)
    return {
        "indexing_over_limit": statistics.median(embeddings) / limit,
        "indexing_command_over_limit": statistics.median(commands) / limit,
        "indexing_useful_cpu_share": statistics.median(shares),
        "indexing_over_limit_bound": statistics.median(bounds),
        "indexing_limit_per_s": limit,
        "indexing_per_s": statistics.median(embeddings),
        "indexing_decode_ms": 1000 * decoding,
        "indexing_encode_ms": 1000 * encoding,
        "indexing_keep_ms": 1000 * keeping,
        "indexing_images": float(n_images),
        "indexing_cores": float(cores),
    }


def _copies(photographs: list[Path], source: Path) -> int:
    for copy in range(N_COPIES):
        for path in photographs:
            target = source / str(copy) / path.relative_to(IMAGES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return N_COPIES * len(photographs)


def _cpu_seconds(photographs: list[Path], path: Path, cores: int) -> tuple[float, float, float]:
    """CPU seconds of decoding an image, of encoding it, and of what is kept, while all cores do."""
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        of_cores = pool.map(_cpu_seconds_of_one, [photographs] * cores, [path] * cores)
        decoding, encoding, keeping = np.mean(list(of_cores), axis=0)
    return float(decoding), float(encoding), float(keeping)


def _cpu_seconds_of_one(photographs: list[Path], path: Path) -> tuple[float, float, float]:
    """CPU seconds of decoding an image, of encoding it, and of its thumbnail and hash."""
    tune_malloc(OF_INDEXING)
    encoder = open_encoder(path, "cpu")
    preprocessing = encoder.metadata.preprocessing
    chosen = [photographs[i] for i in np.random.default_rng(0).permutation(len(photographs))]
    files = [one.read_bytes() for one in chosen[:N_LIMIT]]
    started = time.process_time()
    pixels = [
        decode_image(data, smallest_side=preprocessing.smallest_side).pixels for data in files
    ]
    images = [preprocessing(each) for each in pixels]
    decoded = time.process_time()
    for data, each in zip(files, pixels, strict=True):
        encode_thumbnail(each)
        hashlib.sha256(data).hexdigest()
    kept = time.process_time()
    size = batch_size(encoder)
    batches = [np.stack(images[i : i + size]) for i in range(0, len(images), size)]
    began = time.process_time()
    for batch in batches:
        encoder.encode(batch)
    encoded = time.process_time()
    seconds = decoded - started, encoded - began, kept - decoded
    decoding, encoding, keeping = (each / len(files) for each in seconds)
    return decoding, encoding, keeping


def _indexed(source: Path, encoder: Path, place: Path) -> tuple[float, float, float]:
    """Seconds on the clock of the whole command, of embedding alone, and CPU seconds of that."""
    place.mkdir()
    command = [sys.executable, "-m", "index_builder", "index", str(source), "--encoder",
               str(encoder), "--name", "bench", "--provider", "cpu"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    started = time.perf_counter()
    subprocess.run(command, cwd=place, check=True, capture_output=True, env=environment)
    seconds = time.perf_counter() - started
    summary = json.loads((place / "runs/bench/index/index.json").read_text(encoding="utf-8"))
    return seconds, summary["seconds_embedding"], summary["cpu_seconds_embedding"]


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
