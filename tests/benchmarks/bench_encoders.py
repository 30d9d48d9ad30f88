"""Encoders that were made elsewhere, and the one in the box: what int8 and a posterior cost.

**Precision.** MobileNetV2 at 224 px on Caltech-101, brought by `vouch-build encoder` once for each
precision: images a second of the encoder alone (one thread, batches of 8, the precisions in turn,
median of rounds), over those of float32; and what answers become: 40 kinds with 10 images each are
indexed, one half of the other images calibrates (`calibrate --queries`), the other is asked
(`evaluate --queries`).

**Posterior.** Learned whitening and a Laplace posterior on 2,048 features of 100,000 images in
2,000 labels, over the time in which ResNet-50 would embed these images. The features are drawn
around the labels' centres: what a fit costs does not depend on their values. Embedding is measured
on 64 images and multiplied; each with all cores.

**Box.** The encoder in the box, whose activations and weights are int8, beside the same weights in
float32, which `vouch-build encoder --torchvision` writes: CPU milliseconds for an image (one
thread, batches of 1 and 8, in turns), the recall at 1 of each photograph among all others of
Caltech-101 and of CUB, and the cosine between both. `ranges` are the constants that the int8
encoder is written with, measured anew.

    python -m tests.benchmarks.bench_encoders [precision | posterior | box]

Reads VOUCH_DATA_DIR; writes build/bench-encoders.json. Some minutes each.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from index_builder.configuration.build import encoder_config
from index_builder.datasets import LabelledImages, Splits
from index_builder.datasets.splits import QuerySet
from index_builder.encoders import resolve_encoder
from index_builder.encoders.mobilenet_v2 import RANGES
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import fit_step, train_step
from index_builder.vectors.encoder import OnnxTrunk
from index_builder.vectors.images import VectorFile
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.contract import INPUT_NAME
from model_store.encoder.onnx import OnnxEncoder, open_graph
from model_store.images import decode_image
from model_store.machine import usable_processors
from tests.benchmarks.measured import record_figures
from tests.support.float_activations import in_float

RESULTS = Path("build") / "bench-encoders.json"
DATA = Path(os.environ.get("VOUCH_DATA_DIR", "../shared/data"))
WEIGHTS = DATA / "backbones" / "mobilenet_v2_imagenet_int8.npz"
PHOTOGRAPHS = DATA / "caltech101_half" / "caltech101_50classes_short128_webp.zip"
BIRDS = DATA / "cub_first10" / "cub200_2011_first10_short160_webp.zip"

PRECISIONS = ("float32", "float16", "int8_dynamic", "int8_static")
N_ROUNDS, BATCH, N_TIMED = 7, 8, 32
N_PRESENT, N_EACH = 40, 10

N_IMAGES, N_LABELS, N_FEATURES = 100_000, 2_000, 2_048
N_EMBEDDED = 64


def precision(scratch: Path) -> dict[str, Any]:
    """Measure MobileNetV2 in each precision."""
    _divide(scratch)
    encoders, answers = {}, {}
    for name in PRECISIONS:
        _build(
            *("encoder", "--torchvision", "mobilenet_v2", "--weights", WEIGHTS, "--out", name),
            *("--precision", name, "--images", "photographs", "--recall-tolerance", "1"),
            where=scratch,
        )
        encoders[name] = OnnxEncoder(scratch / name / "encoder.onnx", "cpu", threads=1)
        root = Path("bundles") / name
        _build("index", "gallery.csv", "--encoder", name, "--name", name, where=scratch)
        given = ("--queries", "calibration.csv", "--gallery", "gallery.csv")
        _build("calibrate", root, *given, where=scratch)
        out = f"{name}.json"
        _build("evaluate", root, "--queries", "evaluation.csv", "--out", out, where=scratch)
        report = json.loads((scratch / out).read_text())
        answers[name] = {
            "recall_at_1": report["recall_at_1"],
            "ece": report["top1_ece"],
            "error_auroc": report["error_auroc"]["match_probability"],
            "no_match_auroc": report["no_match_auroc"]["no_match_probability"],
            "megabytes": (scratch / name / "encoder.onnx").stat().st_size / 1e6,
        }
    rates = _rates(scratch, encoders)
    return {
        name: {
            **answers[name],
            "images_per_s": rates[name],
            "speed": rates[name] / rates["float32"],
        }
        for name in PRECISIONS
    }


def _divide(scratch: Path) -> None:
    """Unpack the photographs, and write what is gallery and what is asked."""
    with zipfile.ZipFile(PHOTOGRAPHS) as archive:
        archive.extractall(scratch / "photographs")
    of_label = defaultdict(list)
    for path in sorted((scratch / "photographs").rglob("*.webp")):
        of_label[path.parent.name].append(path.relative_to(scratch).as_posix())
    rows: dict[str, list[tuple[str, str]]] = {"gallery": [], "calibration": [], "evaluation": []}
    for number, (label, paths) in enumerate(sorted(of_label.items())):
        n_kept = N_EACH if number < N_PRESENT else 0
        rows["gallery"] += [(path, label) for path in paths[:n_kept]]
        rows["calibration"] += [(path, label) for path in paths[n_kept::2]]
        rows["evaluation"] += [(path, label) for path in paths[n_kept + 1 :: 2]]
    for part, listed in rows.items():
        with (scratch / f"{part}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *listed])


def _rates(scratch: Path, encoders: dict[str, OnnxEncoder]) -> dict[str, float]:
    """Images a second of each encoder, in turn, so that a slow moment falls on all."""
    [first, *_] = encoders.values()
    paths = sorted((scratch / "photographs").rglob("*.webp"))[:: 1000 // N_TIMED][:N_TIMED]
    prepare = first.metadata.preprocessing
    images = np.stack([prepare(decode_image(path.read_bytes()).pixels) for path in paths])
    seconds = defaultdict(list)
    for _ in range(N_ROUNDS):
        for name, encoder in encoders.items():
            seconds[name].append(_seconds(lambda one=encoder: one.encode(images, BATCH)))  # type: ignore[misc]
    return {name: len(images) / statistics.median(taken) for name, taken in seconds.items()}


def box(scratch: Path) -> dict[str, Any]:
    """Measure the encoder in the box beside its weights in float32."""
    arguments = ("--torchvision", "mobilenet_v2", "--weights", WEIGHTS, "--out", "float32")
    _build("encoder", *arguments, where=scratch)
    places = {"float32": scratch / "float32", "int8": resolve_encoder(None, scratch)}
    encoders = {
        name: OnnxEncoder(place / ENCODER_FILE, "cpu", threads=1) for name, place in places.items()
    }
    prepare = encoders["int8"].metadata.preprocessing
    found: dict[str, Any] = {name: {} for name in encoders}
    for part, archive in (("caltech", PHOTOGRAPHS), ("cub", BIRDS)):
        with zipfile.ZipFile(archive) as file:
            file.extractall(scratch / part)
        paths = sorted((scratch / part).rglob("*.webp"))
        labels = np.array([path.parent.name for path in paths])
        images = np.stack([prepare(decode_image(path.read_bytes()).pixels) for path in paths])
        directions = {name: one.encode(images, BATCH).directions for name, one in encoders.items()}
        for name, rows in directions.items():
            similarities = rows @ rows.T
            np.fill_diagonal(similarities, -2)
            right = labels[similarities.argmax(1)] == labels
            found[name][f"{part}_recall_at_1"] = float(right.mean())
        cosines = (directions["float32"] * directions["int8"]).sum(1)
        found["int8"][f"{part}_smallest_cosine"] = float(cosines.min())
        if part == "caltech":
            kinds = np.unique(labels)[::2]
            found["ranges"] = _ranges(places["int8"], images[np.isin(labels, kinds)][::5])
            timed = images[:: len(images) // N_TIMED][:N_TIMED]
    for name, place in places.items():
        found[name]["megabytes"] = (place / ENCODER_FILE).stat().st_size / 1e6
    for batch in (1, BATCH):
        taken = defaultdict(list)
        for _ in range(N_ROUNDS):
            for name, encoder in encoders.items():
                started = time.process_time()
                encoder.encode(timed, batch)
                taken[name].append((time.process_time() - started) * 1e3 / len(timed))
        for name, milliseconds in taken.items():
            found[name][f"cpu_ms_in_batches_of_{batch}"] = statistics.median(milliseconds)
    return found


def _ranges(encoder: Path, images: NDArray[np.uint8]) -> dict[str, float]:
    """Return the magnitude that one value in 10,000 of each signed activation exceeds."""
    model = in_float(onnx.load(encoder / ENCODER_FILE))
    for name in RANGES:
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        model.graph.output.append(value)
    session = open_graph(model.SerializeToString(), "cpu", threads=1)
    values = defaultdict(list)
    for start in range(0, len(images), BATCH):
        outputs = session.run(list(RANGES), {INPUT_NAME: images[start : start + BATCH]})
        for name, output in zip(RANGES, outputs, strict=True):
            values[name].append(np.abs(output).ravel())
    return {name: float(np.quantile(np.concatenate(one), 0.9999)) for name, one in values.items()}


def posterior(scratch: Path) -> dict[str, Any]:
    """Measure the fit on a frozen encoder's features."""
    _build(
        *("encoder", "--torchvision", "resnet50", "--untrained", "--out", "resnet50"),
        where=scratch,
    )
    config = encoder_config(scratch, scratch / "resnet50")
    run = Run(scratch / "run")
    generator = np.random.default_rng(0)
    few = _drawn(generator, 64, 8)
    splits = Splits(few, few, few, QuerySet(few, few, None), QuerySet(few, few, None))
    train_step(config, run, splits)  # writes the trunk
    trunk = OnnxTrunk(run.trunk)
    known = VectorFile(run.vectors, most_bytes=2**31)
    maker = trunk.vectors(known).maker
    training, validation = _drawn(generator, N_IMAGES, N_LABELS), _drawn(generator, 5_000, N_LABELS)
    centres = generator.normal(size=(N_LABELS, N_FEATURES)).astype(np.float32)
    for images in (training, validation):
        codes = np.array([int(label) for label in images.labels])
        contents = images.contents() or []
        for start in range(0, len(images), 5_000):
            some = codes[start : start + 5_000]
            noise = generator.normal(size=(len(some), N_FEATURES)).astype(np.float32)
            known.write(maker, contents[start : start + 5_000], np.abs(centres[some] + noise))
    known.close()
    queries = QuerySet(validation, validation.at([]), None)
    splits = Splits(training, training, validation, queries, queries)
    fit = _seconds(lambda: train_step(config, run, splits))
    fit += _seconds(lambda: fit_step(config, run, splits))
    pixels = generator.integers(0, 256, (N_EMBEDDED, 224, 224, 3), dtype=np.uint8)
    encoder = OnnxEncoder(scratch / "resnet50" / "encoder.onnx", "cpu")
    encoder.encode(pixels[:BATCH])
    embedding = _seconds(lambda: encoder.encode(pixels, BATCH)) * N_IMAGES / N_EMBEDDED
    return {
        "n_images": N_IMAGES,
        "n_features": N_FEATURES,
        "embedding_dim": config.network.embedding_dim,
        "fit_s": fit,
        "embedding_s": embedding,
        "posterior_fit_over_embedding": fit / embedding,
    }


def _drawn(generator: np.random.Generator, n: int, n_labels: int) -> LabelledImages:
    """Images that nobody need look at: every one has its own content, whose features are known."""
    names = tuple(generator.bytes(12).hex() for _ in range(n))
    labels = tuple(str(row % n_labels) for row in range(n))

    def read(row: int, _smallest_side: int | None) -> NDArray[np.uint8]:
        return np.random.default_rng(row).integers(0, 256, (224, 224, 3), dtype=np.uint8)

    return LabelledImages(
        names, labels, read, np.arange(n), content=lambda row: bytes.fromhex(names[row])
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _build(*arguments: object, where: Path) -> None:
    """Run ``vouch-build`` as its users do."""
    command = [sys.executable, "-m", "index_builder", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


def main() -> None:
    """Measure what is named, or all, beside what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"precision": precision, "posterior": posterior, "box": box}
    parser.add_argument("part", nargs="?", choices=parts)
    asked = parser.parse_args().part
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found["meta"] = {"cores": usable_processors()}
    for name, measure in parts.items():
        if asked in {None, name}:
            with tempfile.TemporaryDirectory(prefix="vouch-bench-") as scratch:
                found[name] = measure(Path(scratch))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    record_figures("encoders", found, globals())


if __name__ == "__main__":
    main()
