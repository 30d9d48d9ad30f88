"""Every posterior on Fashion-MNIST, as a table for the README.

Each is trained and fitted by the steps of `vouch-build`, from the configuration that a reader would
write. Uncertainty is the spherical variance alone, with no decision layer: what the posterior
itself knows. Without names all post-hoc methods are measured: they share one trained encoder, its
gallery and its features (2.2 GB, kept on the disk), and take a minute each. Any other name trains
an encoder of its own, ten minutes of a core. The rows, and under their own names what the
Kronecker-factored posterior is judged by, go to build/bench-posteriors.json; "undivided" is the
variance without dividing it by the squared length of the embedding.

    python -m tests.benchmarks.bench_posteriors [NAME ...] [--epochs N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from index_builder.configuration.build import BuildConfig, load_config
from index_builder.configuration.posterior import LaplaceConfig
from index_builder.datasets import Splits, load_splits
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.small_images import outliers
from index_builder.metrics import auroc
from index_builder.networks import MetricEncoder, load_encoder
from index_builder.networks.encoder import all_features, feature_blocks
from index_builder.pipeline.run import TRAINING_REPORT, Run
from index_builder.pipeline.steps import fit_step, train_step
from index_builder.posteriors.baselines import PointPosterior
from index_builder.posteriors.laplace.held_out import norm_correlation
from index_builder.posteriors.stored import Posterior, load_posterior
from index_builder.reproduction.methods import METHODS, configured
from model_store.sphere import spherical_variance, unit_direction
from tests.benchmarks import bench_fit, bench_prediction
from tests.benchmarks.kept_features import fitted, kept_features
from tests.benchmarks.measured import record_figures

RUNS = Path("build/posteriors")
RESULTS = Path("build/bench-posteriors.json")
BASELINE = "deterministic"
KRONECKER = "kron_posthoc_fixed"


@dataclass(frozen=True)
class World:
    """What an encoder makes of the images that posteriors are asked about.

    Attributes
    ----------
    queries, alien : features (N, F) of the matched queries, and of each kind of outlier.
    wrong : (N,) whether the first item that a query finds has another label.
    similarities, alien_similarities : to the first item, of the queries and of MNIST.
    """

    queries: Tensor
    alien: dict[str, Tensor]
    wrong: NDArray[np.bool_]
    similarities: NDArray[np.float32]
    alien_similarities: NDArray[np.float32]


def world_of(encoder: MetricEncoder, splits: Splits) -> World:
    """Search the gallery once: the mean decides, which all posteriors of an encoder share."""
    assert splits.evaluation.outliers is not None
    photographs = outliers("photographs", 1, np.random.default_rng(0))
    assert photographs is not None
    queries = all_features(encoder, splits.evaluation.matched)
    alien = {
        "OOD": all_features(encoder, splits.evaluation.outliers),
        "photographs": all_features(encoder, photographs),
        "corrupted": all_features(encoder, corrupted(splits.evaluation.matched, 0)),
    }

    @torch.no_grad()
    def directions(some: Tensor) -> NDArray[np.float32]:
        return unit_direction(encoder.last_layer(some).numpy())

    index = faiss.IndexFlatIP(encoder.last_layer.out_features)
    for block in feature_blocks(encoder, splits.gallery):
        index.add(directions(block))
    similarities, rows = index.search(directions(queries), 1)
    labels = np.array(splits.gallery.labels)
    wrong = labels[rows[:, 0]] != np.array(splits.evaluation.matched.labels)
    of_alien = index.search(directions(alien["OOD"]), 1)[0][:, 0]
    return World(queries, alien, wrong, similarities[:, 0], of_alien)


@torch.no_grad()
def evaluated(posterior: Posterior, world: World) -> dict[str, float]:
    """Recall at 1, and what the uncertainty tells, on the evaluation half."""

    def spread(some: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean, variance = (value.numpy() for value in posterior.predict(some))
        return spherical_variance(mean, variance), variance.sum(axis=1, dtype=np.float64)

    own, undivided = spread(world.queries)
    alien = {kind: spread(some) for kind, some in world.alien.items()}
    return {
        "recall at 1": 1 - world.wrong.mean(),
        "error AUROC": _auroc(own[world.wrong], own[~world.wrong]),
        "OOD AUROC": _auroc(alien["OOD"][0], own),
        "photographs": _auroc(alien["photographs"][0], own),
        "corrupted": _auroc(alien["corrupted"][0], own),
        "error AUROC, undivided": _auroc(undivided[world.wrong], undivided[~world.wrong]),
        "OOD AUROC, undivided": _auroc(alien["OOD"][1], undivided),
        "photographs, undivided": _auroc(alien["photographs"][1], undivided),
        "error AUROC, similarity": _auroc(
            -world.similarities[world.wrong], -world.similarities[~world.wrong]
        ),
        "OOD AUROC, similarity": _auroc(-world.alien_similarities, -world.similarities),
    }


def _auroc(higher: NDArray[np.floating[Any]], lower: NDArray[np.floating[Any]]) -> float:
    area = auroc(higher.astype(np.float64), lower.astype(np.float64))
    return float("nan") if area is None else area


def trained(config: BuildConfig, run: Run, splits: Splits) -> MetricEncoder:
    """The encoder of a run: kept where the configuration is the same."""
    report = run.directory / TRAINING_REPORT
    if not report.exists() or config.changed_since(run.read_json(TRAINING_REPORT)["config"]):
        train_step(config, run, splits)
    return load_encoder(config.network, run.checkpoint)


def judged(row: dict[str, float], correlation: float | None) -> dict[str, float | None]:
    """What is compared from version to version, of the Kronecker-factored posterior."""
    return {
        "kron_ood_mnist": row["OOD AUROC"],
        "kron_ood_photographs": row["photographs"],
        "kron_error_auroc": row["error AUROC"],
        "norm_correlation": correlation,
        "kron_prediction_cost": bench_prediction.kronecker_cost(),
        "kron_fit_over_epoch": bench_fit.measure(RUNS / "one-epoch")["exact_fit_over_epoch"],
    }


def main() -> None:
    """Train what is missing, fit, evaluate, print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    post_hoc = [name for name, method in METHODS.items() if method.post_hoc]
    names = ", ".join(METHODS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{names}; all post-hoc ones")
    parser.add_argument("--epochs", type=int, help="of each training, instead of the built-in")
    options = parser.parse_args()
    if unknown := set(options.names) - METHODS.keys():
        parser.error(f"no posterior {sorted(unknown)}; there are: {names}")
    base = load_config("fashion-mnist")
    if options.epochs is not None:
        training = base.training.model_copy(update={"epochs": options.epochs})
        base = base.model_copy(update={"training": training})
    runs = RUNS / f"{base.training.epochs}-epochs"
    deterministic = Run(runs / BASELINE)
    splits = load_splits(base)
    encoder = trained(configured(base, BASELINE), deterministic, splits)
    shared = world_of(encoder, splits)
    held_out = all_features(encoder, splits.validation)
    learned_from = (
        kept_features(encoder, splits.training, deterministic.directory / "features.npy"),
        torch.from_numpy(splits.training.label_codes()),
        encoder.last_layer.weight.detach(),
        encoder.last_layer.bias.detach(),
    )
    rows = {BASELINE: evaluated(PointPosterior.of(encoder.last_layer), shared)}
    print("| method | " + " | ".join(rows[BASELINE]) + " |")
    print("|---|" + "---:|" * len(rows[BASELINE]))
    print_row(METHODS[BASELINE].title, rows[BASELINE])
    results: dict[str, Any] = {}
    for name in options.names or post_hoc:
        if name == BASELINE:
            continue
        config, run = configured(base, name, deterministic.checkpoint), Run(runs / name)
        if METHODS[name].post_hoc and isinstance(config.posterior, LaplaceConfig):
            fit = fitted(config, *learned_from)
            rows[name] = evaluated(fit.posterior, shared)
        else:
            world = world_of(trained(config, run, splits), splits)
            fit_step(config, run, splits)
            rows[name] = evaluated(load_posterior(run.posterior), world)
        print_row(METHODS[name].title, rows[name])
        if rows[name]["recall at 1"] < rows[BASELINE]["recall at 1"] - 0.01:
            print(f"{name} costs more than one point of recall at 1", file=sys.stderr)
        if name == KRONECKER:
            results = judged(rows[name], norm_correlation(fit.posterior, held_out))
            print(json.dumps(results, indent=1), file=sys.stderr)
        meta = {"epochs": base.training.epochs, "measured": time.strftime("%Y-%m-%d")}
        RESULTS.parent.mkdir(exist_ok=True)  # each time: who stops it keeps what there is
        RESULTS.write_text(
            json.dumps({**results, "rows": rows, "meta": meta}, indent=1) + "\n", encoding="utf-8"
        )
        record_figures("posteriors", {**results, "rows": rows, "meta": meta}, globals())


def print_row(name: str, row: dict[str, float]) -> None:
    """One line of the table."""
    print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
