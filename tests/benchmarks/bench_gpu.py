"""What a GPU is worth: one command that runs unattended and writes one JSON.

    python -m tests.benchmarks.bench_gpu [--quick]

It measures, for each execution provider that ONNX Runtime may have (CUDA, TensorRT, the CPU's):

- the encoder alone, float32 and float16, batches of 1 to 64: throughput and latency of its
  *roofline* (everything in the device's memory), of `OnnxEncoder`, with graphs of CUDA, and with
  photographs decoded on the processor's cores meanwhile; and its parity with the CPU's answers;
- the service over the encoder alone, at float32 and batches of 64:
  ``gpu_service_over_encoder_fp32_b64``, and ``…_fp16_b64`` of a bundle with that encoder;

and in torch posterior fits, and training steps in float32 and with mixed precision. What needs a
GPU, and finds none, says so in its row. The network is torchvision's ResNet-50 with its weights,
which are downloaded (`--network`, `--weights FILE` for others); the photographs are parts of
scikit-learn's, and the bundle is made of them. `--quick` takes smaller sizes, and MobileNetV2 of
VOUCH_DATA_DIR. Writes build/bench-gpu.json after each row.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from model_store.machine import Provider
from tests.benchmarks.bench_encoders import WEIGHTS
from tests.benchmarks.gpu.encoders import encoder_rows, machine
from tests.benchmarks.gpu.fitting import Sizes, fitting_rows
from tests.benchmarks.gpu.rows import Row, row
from tests.benchmarks.gpu.serving import serving_row
from tests.benchmarks.measured import record_figures

WORK = Path("build/bench-gpu")
REPORT = Path("build/bench-gpu.json")
PRECISIONS = ("float32", "float16")
PROVIDERS: Sequence[Provider] = ("cuda", "tensorrt", "cpu")
N_PHOTOGRAPHS = 64
assert set(PROVIDERS) <= set(get_args(Provider))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    network: str = "resnet50"
    weights: str = "IMAGENET1K_V1"
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    seconds: float = 3.0
    n_queries: int = 4_000
    sizes: Sizes = field(default_factory=Sizes)


QUICK = Scale(
    "mobilenet_v2",
    str(WEIGHTS),
    (1, 4),
    0.5,
    64,
    Sizes(2_000, 256, 32, 50, batch=8, network="mobilenet_v2"),
)


def rows(scale: Scale) -> Iterable[Row]:
    """Every row there is."""
    photographs = taken()
    made = []
    for precision in PRECISIONS:
        path = WORK / f"{scale.network}-{precision}" / "encoder.onnx"
        written = row(
            {"kind": "encoder", "precision": precision},
            partial(_make, path.parent, scale, precision),
        )
        if "failed" in written:
            yield written
            continue
        made.append(precision)
        for provider in PROVIDERS:
            yield from encoder_rows(
                path, precision, provider, scale.batches, photographs, scale.seconds
            )
    batch = max(scale.batches)
    for precision in made:
        bundles = _indexed(scale.network, precision, photographs)
        for provider in PROVIDERS:
            found = serving_row(
                bundles, provider, batch, photographs, scale.n_queries, scale.seconds
            )
            yield {**found, "precision": precision}
    yield from fitting_rows(scale.sizes, scale.seconds)


def named(found: Sequence[Row]) -> dict[str, float]:
    """The ratios that have a name."""
    names = {"float32": "fp32", "float16": "fp16"}
    return {
        f"gpu_service_over_encoder_{names[one['precision']]}_b{one['batch']}": one["over_encoder"]
        for one in found
        if one["kind"] == "service" and one["provider"] == "cuda" and "over_encoder" in one
    }


def taken() -> list[bytes]:
    """Photographs of some hundred kilobytes: parts of two, as JPEG."""
    generator = np.random.default_rng(0)
    files = []
    for number in range(N_PHOTOGRAPHS):
        pixels = load_sample_images().images[number % 2]
        top, left = generator.integers(0, (100, 200))
        out = io.BytesIO()
        Image.fromarray(pixels[top:, left:]).save(out, "JPEG", quality=92)
        files.append(out.getvalue())
    return files


def _make(directory: Path, scale: Scale, precision: str) -> Row:
    if not (directory / "encoder.onnx").exists():
        given = ["--torchvision", scale.network, "--weights", scale.weights]
        given += ["--precision", precision, "--recall-tolerance", "1"]
        _build("encoder", *given, "--out", str(directory))
    return {}


def _indexed(network: str, precision: str, photographs: Sequence[bytes]) -> Path:
    """A directory of bundles whose gallery is the photographs."""
    name = f"{network}-{precision}"
    bundles, folder = WORK / "bundles" / name, WORK / "photographs"
    if (bundles / "CURRENT").exists():
        return bundles
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(photographs):
        (folder / f"{number:03d}.jpg").write_bytes(data)
    given = ["--no-labels", "--encoder", str(WORK / name), "--name", name, "--provider", "cpu"]
    _build(
        "index", str(folder), *given, "--run", str(WORK / f"run-{name}"), "--bundles", str(bundles)
    )
    return bundles


def _build(*arguments: str) -> None:
    command = [sys.executable, "-m", "index_builder", *arguments]
    subprocess.run(command, check=True, env=os.environ, stdout=subprocess.DEVNULL)


def measure(scale: Scale, report: Path = REPORT) -> dict[str, Any]:
    """Measure row after row, and write what there is so far."""
    report.parent.mkdir(parents=True, exist_ok=True)
    found: list[Row] = []
    document: dict[str, Any] = {"meta": machine()}
    for one in rows(scale):
        found.append(one)
        document |= {"rows": found, **named(found)}
        report.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(one), flush=True)
    return document


def main() -> None:
    """Print each row, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--network", help="of torchvision")
    parser.add_argument("--weights", help="a file, or a name of torchvision's")
    options = vars(parser.parse_args())
    scale = QUICK if options.pop("quick") else Scale()
    found = measure(replace(scale, **{name: value for name, value in options.items() if value}))
    record_figures("gpu", found, globals())


if __name__ == "__main__":
    main()
