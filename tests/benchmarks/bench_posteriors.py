"""Every posterior on Fashion-MNIST, as a table for the README.

Each is trained, fitted and exported by the steps of `vouch-build`, from the configuration that a
reader would write, and measured as it would be served; post-hoc ones share one trained encoder.
Uncertainty is the spherical variance alone, with no decision layer: what the posterior itself
knows. Minutes for each of the trained ones. The rows, and under their own names what the
Kronecker-factored posterior is judged by, go to build/bench-posteriors.json.

    python tests/benchmarks/bench_posteriors.py [NAME ...] [--epochs N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_prediction
import faiss
import numpy as np
from numpy.typing import NDArray

from index_builder.configuration.build import BuildConfig, load_config
from index_builder.datasets import LabelledImages, Splits, load_splits
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.outliers import outliers
from index_builder.metrics import auroc
from index_builder.pipeline.checkpoints import TRAINING_REPORT
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from index_builder.reproduction.methods import METHODS, configured
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.sphere import spherical_variance, unit_direction

RUNS = Path("build/posteriors")
RESULTS = Path("build/bench-posteriors.json")
BASELINE = "deterministic"
KRONECKER = "kron_posthoc_fixed"
BATCH = 250


@dataclass(frozen=True)
class Embedded:
    """Directions (N, D) and spherical variances (N,) of some images."""

    directions: NDArray[np.float32]
    variances: NDArray[np.float64]


def embed(encoder: OnnxEncoder, images: LabelledImages) -> Embedded:
    """Batch by batch: the features of 60,000 images need not fit into memory."""
    directions, variances = [], []
    for _, batch in images.batches(encoder.metadata.preprocessing, BATCH):
        embedded = encoder.encode(batch)
        directions.append(unit_direction(embedded.mean))
        variances.append(spherical_variance(embedded.mean, embedded.variance))
    return Embedded(np.concatenate(directions), np.concatenate(variances))


def evaluated(encoder: OnnxEncoder, splits: Splits) -> dict[str, float]:
    """Recall at 1, and what the uncertainty tells, on the evaluation half."""
    gallery = embed(encoder, splits.gallery)
    queries = embed(encoder, splits.evaluation.matched)
    assert splits.evaluation.outliers is not None
    photographs = outliers("photographs", 1, np.random.default_rng(0))
    assert photographs is not None
    alien = embed(encoder, splits.evaluation.outliers)
    spoilt = embed(encoder, corrupted(splits.evaluation.matched, 0))
    index = faiss.IndexFlatIP(gallery.directions.shape[1])
    index.add(gallery.directions)
    similarities, rows = index.search(queries.directions, 1)
    labels = np.array(splits.gallery.labels)
    wrong = labels[rows[:, 0]] != np.array(splits.evaluation.matched.labels)
    outlying = -index.search(alien.directions, 1)[0][:, 0]
    return {
        "recall at 1": 1 - wrong.mean(),
        "error AUROC": _auroc(queries.variances[wrong], queries.variances[~wrong]),
        "OOD AUROC": _auroc(alien.variances, queries.variances),
        "photographs": _auroc(embed(encoder, photographs).variances, queries.variances),
        "corrupted": _auroc(spoilt.variances, queries.variances),
        "error AUROC, similarity": _auroc(-similarities[wrong, 0], -similarities[~wrong, 0]),
        "OOD AUROC, similarity": _auroc(outlying, -similarities[:, 0]),
    }


def _auroc(higher: NDArray[np.floating[Any]], lower: NDArray[np.floating[Any]]) -> float:
    area = auroc(higher.astype(np.float64), lower.astype(np.float64))
    return float("nan") if area is None else area


def exported(config: BuildConfig, run: Run) -> OnnxEncoder:
    """The encoder of a run as it would be served: kept where the configuration is the same."""
    report = run.directory / TRAINING_REPORT
    if not report.exists() or run.read_json(TRAINING_REPORT)["config"] != config.model_dump(
        mode="json"
    ):
        train_step(config, run)
    fit_step(config, run)
    export_step(config, run)
    return OnnxEncoder(run.staging / ENCODER_FILE)


def judged(row: dict[str, float], kronecker: Run, deterministic: Run) -> dict[str, float]:
    """What is compared from version to version, of the Kronecker-factored posterior."""
    fitted = kronecker.read_json("posterior.json")
    epochs = deterministic.read_json(TRAINING_REPORT)["epochs"]
    return {
        "kron_ood_mnist": row["OOD AUROC"],
        "kron_ood_photographs": row["photographs"],
        "kron_error_auroc": row["error AUROC"],
        "norm_correlation": fitted["norm_correlation"],
        "kron_prediction_cost": bench_prediction.kronecker_cost(),
        "kron_fit_over_epoch": fitted["seconds"] / float(np.mean([e["seconds"] for e in epochs])),
    }


def main() -> None:
    """Train what is missing, fit, export, evaluate, print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--epochs", type=int, help="of each training, instead of the built-in")
    options = parser.parse_args()
    base = load_config("fashion-mnist")
    if options.epochs is not None:
        training = base.training.model_copy(update={"epochs": options.epochs})
        base = base.model_copy(update={"training": training})
    runs = RUNS / f"{base.training.epochs}-epochs"
    deterministic = Run(runs / BASELINE)
    splits = load_splits(base)
    rows = {BASELINE: evaluated(exported(configured(base, BASELINE), deterministic), splits)}
    print("| method | " + " | ".join(rows[BASELINE]) + " |")
    print("|---|" + "---:|" * len(rows[BASELINE]))
    print_row(METHODS[BASELINE].title, rows[BASELINE])
    results: dict[str, Any] = {}
    for name in options.names:
        if name == BASELINE:
            continue
        config, run = configured(base, name, deterministic.checkpoint), Run(runs / name)
        rows[name] = evaluated(exported(config, run), splits)
        print_row(METHODS[name].title, rows[name])
        if rows[name]["recall at 1"] < rows[BASELINE]["recall at 1"] - 0.01:
            print(f"{name} costs more than one point of recall at 1", file=sys.stderr)
        if name == KRONECKER:
            results = judged(rows[name], run, deterministic)
            print(json.dumps(results, indent=1), file=sys.stderr)
    meta = {"epochs": base.training.epochs, "finished": time.strftime("%Y-%m-%d")}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({**results, "rows": rows, "meta": meta}, indent=1) + "\n", encoding="utf-8"
    )


def print_row(name: str, row: dict[str, float]) -> None:
    """One line of the table."""
    print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
