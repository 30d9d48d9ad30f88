"""Every posterior on Fashion-MNIST, as a table for the README.

Each is trained and fitted by the steps of `vouch-build`, from the configuration that a reader would
write; post-hoc ones share one trained encoder. Uncertainty is the spherical variance alone, with no
decision layer: what the posterior itself knows. Minutes for each of the trained ones.

    python tests/benchmarks/bench_posteriors.py [NAME ...] [--epochs N]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from index_builder.configuration import BuildConfig, load_config
from index_builder.datasets import LabelledImages, Splits, load_splits
from index_builder.features import feature_blocks
from index_builder.methods import METHODS, configured
from index_builder.metrics import auroc
from index_builder.networks import MetricEncoder, load_encoder
from index_builder.posteriors import Posterior, load_posterior
from index_builder.run import Run
from index_builder.steps import TRAINING_REPORT, fit_step, train_step
from model_store.predictive import spherical_variance
from model_store.sphere import unit_direction

RUNS = Path("build/posteriors")


@dataclass(frozen=True)
class Embedded:
    """Directions (N, D) and spherical variances (N,) of some images."""

    directions: NDArray[np.float32]
    variances: NDArray[np.float64]


class Certain:
    """No posterior: the encoder's own embedding, of which nothing is uncertain."""

    def __init__(self, encoder: MetricEncoder) -> None:
        self._layer = encoder.last_layer

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean = self._layer(features)
        return mean, torch.zeros_like(mean)

    def save(self, path: Path) -> None:
        raise NotImplementedError("there is nothing to save")


def embed(encoder: MetricEncoder, posterior: Posterior, images: LabelledImages) -> Embedded:
    """Through torch, block by block: the features of 60,000 images need not fit into memory."""
    directions, variances = [], []
    for features in feature_blocks(encoder, images):
        with torch.no_grad():
            mean, variance = (value.numpy() for value in posterior.predict(features))
        directions.append(unit_direction(mean))
        variances.append(spherical_variance(mean, variance))
    return Embedded(np.concatenate(directions), np.concatenate(variances))


def evaluated(encoder: MetricEncoder, posterior: Posterior, splits: Splits) -> dict[str, float]:
    """Recall at 1, and what the uncertainty tells, on the evaluation half."""
    gallery = embed(encoder, posterior, splits.gallery)
    queries = embed(encoder, posterior, splits.evaluation.matched)
    assert splits.evaluation.outliers is not None
    outliers = embed(encoder, posterior, splits.evaluation.outliers)
    index = faiss.IndexFlatIP(gallery.directions.shape[1])
    index.add(gallery.directions)
    similarities, rows = index.search(queries.directions, 1)
    labels = np.array(splits.gallery.labels)
    wrong = labels[rows[:, 0]] != np.array(splits.evaluation.matched.labels)
    outlying = -index.search(outliers.directions, 1)[0][:, 0]
    return {
        "recall at 1": 1 - wrong.mean(),
        "error AUROC": _auroc(queries.variances[wrong], queries.variances[~wrong]),
        "OOD AUROC": _auroc(outliers.variances, queries.variances),
        "error AUROC, similarity": _auroc(-similarities[wrong, 0], -similarities[~wrong, 0]),
        "OOD AUROC, similarity": _auroc(outlying, -similarities[:, 0]),
    }


def _auroc(higher: NDArray[np.floating[Any]], lower: NDArray[np.floating[Any]]) -> float:
    area = auroc(higher.astype(np.float64), lower.astype(np.float64))
    return float("nan") if area is None else area


def trained(config: BuildConfig, run: Run) -> MetricEncoder:
    """The encoder of a run: kept where it was trained by the same configuration."""
    report = run.directory / TRAINING_REPORT
    if not report.exists() or run.read_json(TRAINING_REPORT)["config"] != config.model_dump(
        mode="json"
    ):
        train_step(config, run)
    return load_encoder(config.network, run.checkpoint)


def main() -> None:
    """Train what is missing, fit, evaluate, print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--epochs", type=int, help="of each training, instead of the built-in")
    options = parser.parse_args()
    base = load_config("fashion-mnist")
    if options.epochs is not None:
        training = base.training.model_copy(update={"epochs": options.epochs})
        base = base.model_copy(update={"training": training})
    runs = RUNS / f"{base.training.epochs}-epochs"
    deterministic = Run(runs / "deterministic")
    encoder, splits = trained(base, deterministic), load_splits(base)
    baseline = evaluated(encoder, Certain(encoder), splits)
    print("| posterior | " + " | ".join(baseline) + " |")
    print("|---|" + "---:|" * len(baseline))
    print_row("deterministic", baseline)
    for name in options.names:
        run = Run(runs / name)
        config = configured(base, name, deterministic.checkpoint)
        encoder = trained(config, run)
        fit_step(config, run)
        row = evaluated(encoder, load_posterior(run.posterior), splits)
        print_row(METHODS[name].title, row)
        if row["recall at 1"] < baseline["recall at 1"] - 0.01:
            raise SystemExit(f"{name} costs more than one point of recall at 1")


def print_row(name: str, row: dict[str, float]) -> None:
    """One line of the table."""
    print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
