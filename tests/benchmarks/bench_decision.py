"""The decision layer over five seeds: calibration, errors, outliers, result sets.

Fashion-MNIST trains its own encoder on eight classes, another pair withheld for each seed; the
photographs of Caltech-101 and Omniglot's characters go through ImageNet's MobileNetV2, which no
label of the gallery has trained. Calibration and evaluation queries are disjoint. Reads
VOUCH_DATA_DIR; runs are kept in build/decision and only measured again.

    python -m tests.benchmarks.bench_decision [SET ...] [--seeds N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import binom, rankdata
from sklearn.isotonic import IsotonicRegression

from index_builder.calibration.retrieval import CalibratedGallery, RetrievedQueries
from index_builder.configuration.build import BuildConfig, load_config
from index_builder.datasets import LabelledImages, load_splits
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.images import from_arrays
from index_builder.datasets.small_images import idx_dataset, outliers
from index_builder.metrics import auroc, calibration_error, reliability
from index_builder.pipeline.build import calibrate_step, index_step
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from model_store.bundles.bundle import open_parts
from model_store.decision import Calibration, choice_probabilities
from model_store.decision.outliers import unit_rows
from model_store.decision.probabilities import prior_shift
from model_store.encoder.onnx import OnnxEncoder
from tests.benchmarks.measured import mean_rows, record_table
from tests.benchmarks.photographs import WEIGHTS, unpacked
from tests.benchmarks.photographs import config_of as photographs
from tests.benchmarks.preconditions import data_dir

RUNS = Path("build/decision")
SETS = ("fashion-mnist", "caltech101_half", "omniglot")
EPOCHS = 4
"""Of Fashion-MNIST: a seed takes minutes, and recall is within half a point of twelve epochs'."""

N_FAR = 1000
"""Images of each other world."""

ALPHAS = (0.01, 0.05, 0.1)
COVERAGES = (0.9, 0.95)

COLUMNS = {
    "fashion-mnist": "Fashion-MNIST",
    "caltech101_half": "Caltech-101",
    "omniglot": "Omniglot",
}
TITLES = {
    "R@1": "recall at 1",
    "error AUROC": "AUROC, first result wrong: **match probability**",
    "… gap": "… gap to the next label",
    "top-1 ECE": "ECE of the first result",
    "… of a perfect predictor, 95 %": "… a perfect predictor's, 95 % of the time below",
    "Brier": "Brier score",
    "… isotonic on the cosine": "… of isotonic regression on the cosine",
    "no-match AUROC": "AUROC, nothing matches: **P(no match)**",
    "… similarity, no match": "… similarity",
    "OOD AUROC, near": "outliers, AUROC: labels withheld",
}
"""Titles of rows that do not explain themselves."""

Floats = NDArray[np.float64]


def config_of(name: str, seed: int, data: Path) -> BuildConfig:
    """The configuration of one run."""
    if name == "fashion-mnist":
        fields = load_config(name).model_dump()
        fields["training"]["epochs"] = EPOCHS
        classes = sorted(set(idx_dataset("FashionMNIST", "t10k").labels))
        fields["dataset"]["withheld_labels"] = (classes[seed % 5], classes[seed % 5 + 5])
    else:
        place = RUNS / "images" / name
        if not place.exists():
            place.mkdir(parents=True)
            unpacked(name, data, place)
        root = place if name == "omniglot" else next(place.iterdir())
        fields = photographs(name, root.resolve(), data / WEIGHTS).model_dump()
    return BuildConfig.model_validate({**fields, "seed": seed})


def other_worlds(data: Path) -> Iterator[tuple[str, LabelledImages]]:
    """Images that none of the three sets resembles; calibration has seen digits alone."""
    generator = np.random.default_rng(1)
    for kind in ("mnist", "photographs"):
        images = outliers(kind, 1, generator)
        assert images is not None
        yield kind, images.at(generator.permutation(len(images))[:N_FAR])
    for kind, pattern in (("cifar10", "cifar10/test_batch.webp"), ("chars74k", "chars74k/*.webp")):
        (path,) = data.glob(pattern)
        pixels = np.asarray(Image.open(path).convert("RGB"))
        tiles = pixels.reshape(len(pixels) // 32, 32, -1, 32, 3).swapaxes(1, 2)
        tiles = tiles.reshape(-1, 32, 32, 3)[:N_FAR]
        yield kind, from_arrays(kind, tiles, [kind] * len(tiles))


class Measured:
    """Queries of one kind, as a calibrated bundle sees them."""

    def __init__(self, calibration: Calibration, observed: RetrievedQueries) -> None:
        self.calibration, self.observed = calibration, observed
        self.outlier_scores = observed.outlier_scores
        self.p_values = np.array([calibration.outlier_p_value(s) for s in self.outlier_scores])
        shift = prior_shift(calibration.assumed_absent, calibration.default_share)
        self.labels = [self._labels(row, shift) for row in range(len(observed))]
        self.probabilities = np.array([of_labels[0] for _, of_labels in self.labels])
        self.no_match = np.array([1 - of_labels.sum() for _, of_labels in self.labels])
        self.correct = observed.matches[:, 0]
        self.similarities = observed.similarities[:, 0]

    def _labels(self, row: int, shift: float) -> tuple[NDArray[np.int64], Floats]:
        """Places of the labels that a query finds, and their match probabilities."""
        places, values = self.observed.signals(row)
        return places, choice_probabilities(self.calibration.match.log_odds(values) + shift)

    def gaps(self) -> Floats:
        """Similarity of the first item over that of the nearest of another label."""
        codes, similarities = self.observed.label_codes, self.observed.similarities
        other = np.where(codes == codes[:, :1], -np.inf, similarities).max(axis=1)
        # ∞ where all candidates agree: nothing is surer.
        gaps: Floats = self.similarities - other
        return gaps

    def result_sets(self, coverage: float) -> tuple[float, float]:
        """Share of sets that hold a match, and mean size."""
        hits, sizes = [], []
        for row in range(len(self.observed)):
            places, probabilities = self._labels(row, shift=0.0)
            classes = self.calibration.classes_of(self.observed.label_codes[row, places])
            sets = self.calibration.promises().sets
            chosen = sets.choose(places, probabilities, classes, coverage).places
            hits.append(self.observed.matches[row, chosen].any())
            sizes.append(len(chosen))
        return float(np.mean(hits)), float(np.mean(sizes))


def nearest_features(
    encoder: OnnxEncoder, references: NDArray[np.float32], images: LabelledImages
) -> Floats:
    """The textbook's kNN score: distance of unit features to the nearest of the gallery's."""
    distances = []
    for _, batch in images.batches(encoder.metadata.preprocessing, 64):
        rows = unit_rows(encoder.encode(batch).features)
        distances.append(np.sqrt(np.maximum(2 - 2 * (rows @ references.T).max(axis=1), 0)))
    return np.concatenate(distances).astype(np.float64)


def measure(config: BuildConfig, run: Run, data: Path) -> dict[str, float]:
    """Build what is missing, calibrate, and measure on the evaluation half."""
    if not (run.directory / "built").exists():
        splits = load_splits(config)
        train_step(config, run, splits)
        fit_step(config, run, splits)
        export_step(config, run, splits)
        index_step(config, run)
        (run.directory / "built").touch()
    calibrate_step(config, run)
    retriever, splits = open_parts(run.staging, "cpu"), load_splits(config)
    calibration, encoder = retriever.calibration, retriever.encoder
    assert calibration is not None
    assert isinstance(encoder, OnnxEncoder)
    known = encoder, retriever.gallery, calibration.detector, calibration.n_candidates
    searched = replace(CalibratedGallery.known(*known), means=calibration.means)
    look = partial(searched.observe, encoder)
    queries = splits.evaluation
    matched = Measured(calibration, look(queries.matched))
    strangers = len(queries.withheld) > 0
    # Queries with their label hidden are no absent ones: without labels that were kept out of
    # everything, nothing is measured of them here. `bench_promises` keeps labels out.
    absent = Measured(calibration, look(queries.withheld)) if strangers else None
    row = {"R@1": float(matched.correct.mean())}
    row |= of_errors(matched)
    if absent is not None:
        row |= of_probabilities(config, calibration, matched, absent)
        row["no-match AUROC"] = area(absent.no_match, matched.no_match)
        row["… similarity, no match"] = area(-absent.similarities, -matched.similarities)
    for alpha in ALPHAS:
        row[f"false alarms at {alpha}"] = float((matched.p_values <= alpha).mean())
    row |= of_sets(matched)

    generator = np.random.default_rng(0)
    chosen = splits.gallery.at(generator.permutation(len(splits.gallery))[:5000])
    references = np.concatenate(
        [
            unit_rows(encoder.encode(batch).features)
            for _, batch in chosen.batches(encoder.metadata.preprocessing, 64)
        ]
    )
    alone = partial(nearest_features, encoder, references)
    ordinary = alone(queries.matched)
    worlds = [("corrupted", corrupted(queries.matched, config.seed)), *other_worlds(data)]
    if strangers:
        worlds.insert(0, ("near", queries.withheld))
    for kind, images in worlds:
        seen = Measured(calibration, look(images))
        row[f"OOD AUROC, {kind}"] = area(seen.outlier_scores, matched.outlier_scores)
        row[f"… kNN, {kind}"] = area(alone(images), ordinary)
    return row


def of_probabilities(
    config: BuildConfig, calibration: Calibration, matched: Measured, absent: Measured
) -> dict[str, float]:
    """Are probabilities true, on a stream with as many queries without a match as was said?"""
    share = calibration.default_share
    n_absent = round(share / (1 - share) * len(matched.correct))
    some = np.random.default_rng(config.seed).permutation(len(absent.correct))[:n_absent]
    probabilities = np.r_[matched.probabilities, absent.probabilities[some]]
    correct = np.r_[matched.correct, np.zeros(len(some), dtype=bool)]
    similarities = np.r_[matched.similarities, absent.similarities[some]]
    half = np.random.default_rng(0).permutation(len(correct))
    # Isotonic regression on the raw cosine, fitted on one half and judged on the other, and back.
    isotonic = np.empty(len(correct))
    for train, test in (np.array_split(half, 2), np.array_split(half, 2)[::-1]):
        fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        isotonic[test] = fitted.fit(similarities[train], correct[train]).predict(similarities[test])
    draws = np.random.default_rng(1).uniform(size=(1000, len(correct))) < probabilities
    by_chance = [calibration_error(reliability(probabilities, outcome)) for outcome in draws]
    return {
        "top-1 ECE": calibration_error(reliability(probabilities, correct)),
        "… of a perfect predictor, 95 %": float(np.quantile(by_chance, 0.95)),
        "Brier": float(np.mean((probabilities - correct) ** 2)),
        "… isotonic on the cosine": float(np.mean((isotonic - correct) ** 2)),
    }


def of_errors(matched: Measured) -> dict[str, float]:
    """Is a wrong first result told from a right one?"""
    wrong = ~matched.correct
    signals = {
        "error AUROC": -matched.probabilities,
        "… similarity": -matched.similarities,
        "… gap": rankdata(-matched.gaps()),  # scikit-learn ranks no infinities
    }
    return {name: area(values[wrong], values[~wrong]) for name, values in signals.items()}


def of_sets(matched: Measured) -> dict[str, float]:
    """Do result sets hold what they promise, and how small are they?"""
    found = np.where(
        matched.observed.matches.any(axis=1), matched.observed.matches.argmax(axis=1), 10**6
    )
    row: dict[str, float] = {}
    for coverage in COVERAGES:
        covered, size = matched.result_sets(coverage)
        fixed = next(k for k in range(1, 10**6) if (found < k).mean() >= covered or k == 200)
        row[f"covered at {coverage}"] = covered
        row[f"… mean size at {coverage}"] = size
        row[f"… fixed k at {coverage}"] = fixed
        n = len(found)
        row[f"… within 99 % at {coverage}"] = float(covered * n >= binom.ppf(0.005, n, coverage))
    return row


def area(higher: Floats, lower: Floats) -> float:
    """AUROC, NaN where there is nothing to tell apart."""
    value = auroc(higher, lower)
    return float("nan") if value is None else value


def main() -> None:
    """Print mean ± standard deviation over the seeds, for each set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    data = data_dir()
    report: dict[str, Any] = {}
    for name in options.names:
        rows = []
        for seed in range(options.seeds):
            run = Run(RUNS / f"{name}-{seed}")
            rows.append(measure(config_of(name, seed, data), run, data))
        report[name] = rows
        print(f"| {name}, {options.seeds} seeds | mean | sd |\n|---|---:|---:|")
        for key in rows[0]:
            values = np.array([row[key] for row in rows])
            print(f"| {key} | {values.mean():.4f} | {values.std(ddof=1):.4f} |", flush=True)
    (RUNS / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    titles = {key: TITLES.get(key, key) for rows in report.values() for row in rows for key in row}
    record_table(
        "decision",
        ["", *(COLUMNS[name] for name in report)],
        mean_rows(titles, report),
        globals(),
        about="The photographs and the characters go through MobileNetV2, which saw none of the "
        "labels. Mean ± standard deviation.",
    )


if __name__ == "__main__":
    main()
