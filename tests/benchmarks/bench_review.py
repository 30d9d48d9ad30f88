"""Decisions in the order of the review queue, beside decisions on queries drawn at random.

Characters of Omniglot, through an encoder that has learned nothing from them
(`tests.benchmarks.promises`): six tenths of the characters are in the gallery, which is calibrated
with drawings as they are, of which a twentieth is taken to be absent. What is served then is
another stream: half of the drawings are spoilt (blurred, noisy, dark), three in ten are of
characters that are not in the gallery; the service knows that share (``told``), or not. Simulated
reviewers, who are right but for a share of their words, decide on half of it: on random ones, or as
the queue gives them: one in four at random, and of those that were no match what teaches most
(`model_store.feedback.teaching`); or, for comparison, by the I-optimal design for a logistic curve.
Two oracles know from the start the logistic curve that all decisions would lead to, and the whole
stream: ``known_variances`` shares out decisions as Neyman does, ``known_curve`` by the I-optimal
design. ``least_share`` are the decisions that the best design needs of those that random order
does, for the same error of a curve of which nothing but its variances is known (`least_share`).
The probabilities are corrected by `fit_recalibration`. Measured on the other half, on average over
draws: the ECE by the number of decisions, how many it takes until it stays within 0.005 of what it
is after all of them, and the ECE of a predictor that is perfect; and coverage at an error, the
share of the stream that the likeliest answers make up of which so many are wrong, before and after
what was decided on has become items of the gallery, which is calibrated again.

    python -m tests.benchmarks.bench_review

Reads VOUCH_DATA_DIR; writes build/bench-review.json. Minutes once the images are embedded, which
`bench_promises` does as well (build/promises).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import from_arrays, joined
from index_builder.metrics import calibration_error, reliability
from model_store.decision import (
    Calibration,
    Recalibration,
    Retrieved,
    Terms,
    decide,
    fit_recalibration,
)
from model_store.feedback.teaching import N_STRATA, most_teaching
from model_store.feedback.turns import RANDOM_TURN
from model_store.gallery import Gallery
from model_store.predictive import predict
from model_store.search import N_CANDIDATES
from tests.benchmarks.measured import record_figures
from tests.benchmarks.promises.real import real_world
from tests.benchmarks.promises.worlds import World, write_gallery

RESULTS = Path("build") / "bench-review.json"
NAME = "Omniglot"
N_SEEDS = 3
N_REPETITIONS = 8
ABSENT = 0.3
WRONG = (0.0, 0.05)
BUDGETS = (0, 10, 20, 30, 40, 50, 60, 80, 100, 130, 160, 200, 250, 300)
AT_ONCE = 10
"""Decisions between two fits: those of one lease."""

NEAR = 0.005
ERRORS = (0.02, 0.1)
ORACLES = ("known_variances", "known_curve")
ORDERS = ("random", "queue", "i_optimal", *ORACLES)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Served:
    """N queries as they were served.

    Attributes
    ----------
    log_odds : (N,) of the first item, uncorrected.
    right : (N,) whether that is a true match.
    is_match : (N,) whether the verdict was `match`.
    """

    log_odds: Floats
    right: Bools
    is_match: Bools

    def at(self, rows: Sequence[int] | NDArray[np.int64]) -> Served:
        """Return some of them."""
        return Served(self.log_odds[rows], self.right[rows], self.is_match[rows])


@dataclass(frozen=True, slots=True)
class Stream:
    """The queries of a stream: rows of the matched and the absent images, and which are spoilt."""

    matched: NDArray[np.int64]
    absent: NDArray[np.int64]
    spoilt: Bools


def streams(world: World, generator: np.random.Generator) -> list[Stream]:
    """Test images to decide on, and to measure with: each once, absent ones as they are served."""
    found = []
    halves = [
        np.array_split(generator.permutation(len(images)), 2)
        for images in (world.matched, world.absent)
    ]
    for matched, absent in zip(*halves, strict=True):
        kept = absent[: round(len(matched) * ABSENT / (1 - ABSENT))]
        n = len(matched) + len(kept)
        found.append(Stream(matched, kept, generator.permutation(n) < n / 2))
    return found


def pictures_of(world: World, stream: Stream, prefix: str) -> LabelledImages:
    """Images as they are served; by one changed bit the table of embeddings knows spoilt ones."""
    parts = (world.matched.subset(stream.matched), world.absent.subset(stream.absent))
    pixels = [part.pixels(place, None) for part in parts for place in range(len(part))]
    shown = np.stack(pixels).copy()
    shown[stream.spoilt, 0, 0, 0] ^= 1
    return from_arrays(prefix, shown, [label for part in parts for label in part.labels])


def ask(
    world: World,
    gallery: Gallery,
    calibration: Calibration,
    images: LabelledImages,
    absent: float | None,
) -> Served:
    """Ask about images, where the share of absent ones is known or not."""
    names = gallery.labels
    rows: list[tuple[float, bool, bool]] = []
    for positions, batch in images.batches(world.encoder.metadata.preprocessing, 512):
        embeddings = world.encoder.encode(batch)
        found = gallery.candidates(embeddings.directions, N_CANDIDATES)
        codes = gallery.label_codes(found.rows)
        scores = calibration.outlier_score(embeddings)
        no_samples = np.zeros((1, world.encoder.dim), dtype=np.float32)
        terms = Terms(calibration.alpha, expected_absent=absent)
        for row, predictive in enumerate(predict(embeddings, scores, no_samples)):
            retrieved = Retrieved(
                found.similarities[row],
                codes[row],
                min(codes.shape[1], calibration.n_candidates),
                np.arange(codes.shape[1]),
            )
            decided = decide(calibration, predictive, retrieved, terms)
            assert decided.ranking is not None
            assert decided.match_log_odds is not None
            first = names[codes[row, decided.ranking[0]]]
            right = first == images.labels[positions[row]]
            rows.append((float(decided.match_log_odds[0]), right, decided.verdict == "match"))
    return Served(*(np.array(column) for column in zip(*rows, strict=True)))


def decided_on(pool: Served, order: str, n: int) -> list[int]:
    """Return the queries of a stream that are decided on, in their order."""
    places = list(range(len(pool.right)))
    if order == "random":
        return places[:n]
    if order in ORACLES:
        truth = fit_recalibration(pool.log_odds, pool.right)
        known = pool.log_odds, np.empty(0), pool.log_odds, truth, n
        return most_teaching(*known) if order == "known_variances" else i_optimal(*known)
    chosen: list[int] = []
    drawn = places[: n // RANDOM_TURN]
    waiting = [one for one in places[len(drawn) :] if not pool.is_match[one]]
    stream = pool.log_odds[drawn]
    while len(chosen) < n:
        fitted = fit_recalibration(pool.log_odds[chosen], pool.right[chosen])
        known = pool.log_odds[waiting], pool.log_odds[chosen], stream, fitted, AT_ONCE
        best = most_teaching(*known) if order == "queue" else i_optimal(*known)
        ordered = [waiting[place] for place in best]
        for _ in range(AT_ONCE):
            is_random = drawn and len(chosen) % RANDOM_TURN == 0
            chosen.append((drawn if is_random else ordered).pop(0))
        waiting = [one for one in waiting if one not in chosen]
    return chosen[:n]


def i_optimal(
    log_odds: Floats, decided: Floats, stream: Floats, served: Recalibration, n: int
) -> list[int]:
    """Return the queries that most lower the mean squared error of a logistic curve.

    The I-optimal design (Atkinson, Donev and Tobias 2007; Schein and Ungar 2007), with x = (ℓ, 1):
    a decision lowers tr(I⁻¹ M) by w xᵀ I⁻¹ M I⁻¹ x / (1 + w xᵀ I⁻¹ x).
    """

    def linearised(ell: Floats) -> tuple[Floats, Floats]:
        probabilities = served(ell)
        return np.stack([served.slope * ell, np.ones(len(ell))], 1), probabilities * (
            1 - probabilities
        )

    x, w = linearised(log_odds)
    (of_stream, v), (known, u) = linearised(stream), linearised(decided)
    moment = (of_stream.T * v**2) @ of_stream / len(stream)
    information = np.diag([4.0, 1.0]) + (known.T * u) @ known
    chosen: list[int] = []
    for _ in range(n):
        through = x @ np.linalg.inv(information)
        gain = w * np.einsum("ni,ij,nj->n", through, moment, through)
        gain = gain / (1 + w * np.einsum("ni,ni->n", through, x))
        gain[chosen] = -1
        place = int(gain.argmax())
        chosen.append(place)
        information = information + w[place] * np.outer(x[place], x[place])
    return chosen


def least_share(pool: Served) -> list[float]:
    """Return the shares of random order's decisions that the best allocation to strata needs.

    By the variances σ_k² of the outcomes in strata of weight W_k, as they turn out to be. With n_k
    decisions the share of right ones in a stratum is off by σ_k / √n_k; n_k = W_k n where they are
    random. For Σ W_k σ_k² / n_k the best is Neyman's n_k ~ W_k σ_k, for Σ W_k σ_k / √n_k, which is
    what an ECE grows with, n_k ~ (W_k σ_k)^⅔.
    """
    edges = np.quantile(pool.log_odds, np.linspace(0, 1, N_STRATA + 1)[1:-1])
    strata = np.searchsorted(edges, pool.log_odds)
    weights = np.bincount(strata, minlength=N_STRATA) / len(strata)
    right = np.bincount(strata, pool.right, minlength=N_STRATA) / (weights * len(strata))
    deviations = np.sqrt(right * (1 - right))
    squares = (weights @ deviations) ** 2 / (weights @ deviations**2)
    best = ((weights * deviations) ** (2 / 3)).sum() ** 1.5
    return [float(squares), float((best / (np.sqrt(weights) @ deviations)) ** 2)]


def course(
    pool: Served, held_out: Served, order: str, wrong: float, seed: Sequence[int]
) -> list[float]:
    """The ECE after each number of decisions."""
    generator = np.random.default_rng(seed)
    pool = pool.at(generator.permutation(len(pool.right)))
    chosen = np.array(decided_on(pool, order, max(BUDGETS)))
    said = pool.right[chosen] ^ (generator.random(len(chosen)) < wrong)
    return [
        error_of(fit_recalibration(pool.log_odds[chosen[:n]], said[:n]), held_out) for n in BUDGETS
    ]


def error_of(correction: Recalibration, held_out: Served) -> float:
    """The ECE on the other half of the stream."""
    return calibration_error(reliability(correction(held_out.log_odds), held_out.right))


def perfect(held_out: Served, seed: int) -> float:
    """The ECE of a predictor that is right about the probabilities, on as many queries."""
    generator = np.random.default_rng([seed, 1])
    probabilities = fit_recalibration(held_out.log_odds, held_out.right)(held_out.log_odds)
    return float(
        np.mean(
            [
                calibration_error(
                    reliability(probabilities, generator.random(len(probabilities)) < probabilities)
                )
                for _ in range(N_REPETITIONS)
            ]
        )
    )


def coverage(held_out: Served, error: float) -> float:
    """The largest share of the stream, likeliest first, of which at most ``error`` is wrong."""
    right = held_out.right[np.argsort(-held_out.log_odds, kind="stable")]
    wrong = np.cumsum(~right) / np.arange(1, len(right) + 1)
    return float(np.flatnonzero(wrong <= error).max(initial=-1) + 1) / len(right)


def measure(seed: int) -> dict[str, list[float]]:
    """Measure everything on one draw of the set."""
    found: dict[str, list[float]] = {}

    def calibrated(gallery: Gallery, images: LabelledImages) -> Calibration:
        of_gallery = world.encoder, gallery, images, world.calibration, CalibrationConfig(), seed
        return calibrate_gallery(*of_gallery, are_views=False, unseen=world.unseen)

    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as later:
        world = real_world(NAME, seed, Path(scratch))
        calibration = calibrated(world.gallery, world.gallery_images)
        deciding, measuring = (
            pictures_of(world, stream, prefix)
            for stream, prefix in zip(
                streams(world, np.random.default_rng([seed, 3])), ("new", "held"), strict=True
            )
        )
        for told, absent in (("told", ABSENT), ("untold", None)):
            pool, held_out = (
                ask(world, world.gallery, calibration, images, absent)
                for images in (deciding, measuring)
            )
            found[f"{told}_perfect"] = [perfect(held_out, seed)]
            found[f"{told}_least_share"] = least_share(pool)
            for wrong in WRONG:
                for order in ORDERS:
                    courses = [
                        course(pool, held_out, order, wrong, [seed, repetition])
                        for repetition in range(N_REPETITIONS)
                    ]
                    found[f"{told}_{order}_{wrong:g}"] = np.mean(courses, axis=0).tolist()
        before = ask(world, world.gallery, calibration, measuring, ABSENT)
        enlarged = joined(world.gallery_images, deciding)
        gallery = write_gallery(Path(later), world.encoder, enlarged, seed)
        after = ask(world, gallery, calibrated(gallery, enlarged), measuring, ABSENT)
    found["n_enrolled"] = [float(len(deciding))]
    for error in ERRORS:
        found[f"coverage_at_{error:g}"] = [coverage(before, error), coverage(after, error)]
    return found


def needed(errors: Sequence[float], level: float) -> int | None:
    """The first number of decisions from which on the error stays below a level."""
    below = [error < level for error in errors]
    return next((n for place, n in enumerate(BUDGETS) if all(below[place:])), None)


def main() -> None:
    """Measure, print, write."""
    draws = [measure(seed) for seed in range(N_SEEDS)]
    results: dict[str, object] = {"budgets": list(BUDGETS)}
    means = {key: np.mean([one[key] for one in draws], axis=0).tolist() for key in draws[0]}
    for key, values in means.items():
        results[key] = values
        if len(values) == len(BUDGETS):
            told, wrong = key.split("_", 1)[0], key.rsplit("_", 1)[1]
            level = means[f"{told}_random_{wrong}"][-1] + NEAR
            results[f"{key}_needed"] = needed(values, level)
            results[f"{key}_needed_for_0.03"] = needed(values, 0.03)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for key, value in results.items():
        print(key, np.round(value, 3).tolist() if isinstance(value, list) else value)
    record_figures("review", results, globals())


if __name__ == "__main__":
    main()
