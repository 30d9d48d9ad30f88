"""A folder of photographs to a calibrated bundle, over decoding and encoding each of them once.

The command is `vouch-build all --images FOLDER`, with the encoder that comes with Vouch, on 570
photographs of Caltech-101 (15 of each of 38 labels), in a process of its own, from its start to its
end on the clock. Against it stands the least that the machine could do: the time on the clock of
decoding and encoding each photograph once with ONNX Runtime, on as many cores. In turns. The same
ratio of the time that the processors computed says what remains of it where other processes are at
work. Needs VOUCH_DATA_DIR.

    python -m tests.benchmarks.bench_first_hour
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from index_builder.vectors.images import CPU_BATCH
from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.images import decode_image
from model_store.machine import usable_processors
from tests.benchmarks.photographs import unpacked
from tests.benchmarks.preconditions import data_dir

N_ROUNDS = 2

N_LABELS, N_OF_LABEL = 38, 15
"""The first labels by name, and the first photographs of each label."""


def measure() -> dict[str, float]:
    """Seconds of the command and of the least, and their ratio."""
    data = data_dir()
    seconds: list[tuple[float, float]] = []
    least: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "photographs"
        folder.mkdir()
        root = unpacked("caltech101_half", data, folder)
        photographs = _chosen(root)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        dry_run = [sys.executable, "-m", "index_builder", "all", "--images", str(root), "--dry-run"]
        dry_run += [
            "--run",
            str(Path(scratch) / "dry"),
        ]  # compiles modules, as an installation does
        subprocess.run(dry_run, check=True, capture_output=True, env=environment)
        for number in range(N_ROUNDS):
            bundles = Path(scratch) / f"bundles-{number}"
            command = [sys.executable, "-m", "index_builder", "all", "--images", str(root)]
            command += ["--run", str(Path(scratch) / f"run-{number}"), "--bundles", str(bundles)]
            started, computed = time.perf_counter(), _computed_s()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            seconds.append((time.perf_counter() - started, _computed_s() - computed))
            least.append(_least(photographs, locate(bundles) / ENCODER_FILE))
    clock, cpu = (statistics.median(one) for one in zip(*seconds, strict=True))
    least_clock, least_cpu = (statistics.median(one) for one in zip(*least, strict=True))
    return {
        "folder_to_search_over_encoding": clock / least_clock,
        "folder_to_search_cpu_over_encoding": cpu / least_cpu,
        "folder_to_search_s": clock,
        "folder_to_search_cpu_s": cpu,
        "folder_encoding_s": least_clock,
        "folder_encoding_cpu_s": least_cpu,
        "folder_images": float(len(photographs)),
    }


def _chosen(root: Path) -> list[Path]:
    """Remove all but `N_OF_LABEL` photographs of `N_LABELS` labels; return the others."""
    chosen = []
    for number, label in enumerate(sorted({path.parent for path in root.rglob("*.webp")})):
        for place, path in enumerate(sorted(label.iterdir())):
            if number < N_LABELS and place < N_OF_LABEL:
                chosen.append(path)
            else:
                path.unlink()
        if number >= N_LABELS:
            label.rmdir()
    return chosen


def _computed_s() -> float:
    """Seconds computed for this process, and for those that it started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _least(photographs: list[Path], path: Path) -> tuple[float, float]:
    """Seconds, by the clock and computed, of decoding and encoding each photograph once.

    A batch a core at a time.
    """
    encoder = OnnxEncoder(path, "cpu", threads=1)
    preprocessing = encoder.metadata.preprocessing

    def encode(start: int) -> None:
        batch = [
            preprocessing(decode_image(one.read_bytes(), None, preprocessing.smallest_side).pixels)
            for one in photographs[start : start + CPU_BATCH]
        ]
        encoder.encode(np.stack(batch))

    started, computed = time.perf_counter(), _computed_s()
    with ThreadPoolExecutor(usable_processors()) as pool:
        list(pool.map(encode, range(0, len(photographs), CPU_BATCH)))
    return time.perf_counter() - started, _computed_s() - computed


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
