"""What decisions of simulated reviewers correct, on a stream that was not calibrated with.

``python -m tests.benchmarks.bench_reviewers`` simulates first results whose log-odds ℓ are too
large: truth has 0.6 ℓ − 0.8. Some pairs are drawn at random for review, as `audit` draws them of
likely ones; others are volunteered, wrong ones ``bias`` times as often as right ones; a share of
the reviewers' words is wrong. The table has, by decisions, the ECE of the stream after a correction
that takes every pair for such as is served, after that which is fitted, and after one by drawn
pairs alone.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from index_builder.metrics import calibration_error, reliability
from model_store.decision import Recalibration, fit_recalibration
from tests.benchmarks.measured import record_table

SLOPE, INTERCEPT = 0.6, -0.8
DRAWN = 0.3
"""Share of the decisions that were drawn at random, of likely pairs."""

LIKELY = 0.5
N_STREAM = 20_000
DECISIONS = (50, 100, 200, 400, 1000)
COLUMNS = (
    "decisions",
    "wrong matches reported, times as often",
    "wrong decisions",
    "ECE before",
    "after, all decisions alike",
    "after, drawn and reported ones apart",
    "after, drawn ones alone",
)
COMMAND = "python -m tests.benchmarks.bench_reviewers"
ABOUT = "Simulated reviewers. Three in ten decisions are on pairs that were drawn at random."

Floats = NDArray[np.float64]


def stream(n: int, generator: np.random.Generator) -> tuple[Floats, NDArray[np.bool_]]:
    """Log-odds as served, and the truth."""
    log_odds = generator.normal(1.5, 2.0, n)
    return log_odds, generator.random(n) < expit(SLOPE * log_odds + INTERCEPT)


def decisions(
    n: int, bias: float, wrong: float, generator: np.random.Generator
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Log-odds, what reviewers say, and which pairs were drawn."""
    log_odds, truth = stream(50 * n, generator)
    n_drawn = round(DRAWN * n)
    drawn = np.flatnonzero(expit(log_odds) > LIKELY)[:n_drawn]
    rest = np.setdiff1d(np.arange(len(truth)), drawn)
    propensity = np.where(truth[rest], 1.0, bias)
    chosen = generator.choice(rest, n - n_drawn, replace=False, p=propensity / propensity.sum())
    rows = np.concatenate([drawn, chosen])
    said = truth[rows] ^ (generator.random(len(rows)) < wrong)
    return log_odds[rows], said, np.arange(len(rows)) < n_drawn


def error_of(correction: Recalibration, generator: np.random.Generator) -> float:
    """The ECE of a fresh stream."""
    log_odds, truth = stream(N_STREAM, generator)
    return calibration_error(reliability(correction(log_odds), truth))


def main() -> None:
    """Measure, and write the table of the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for bias, wrong in ((1.0, 0.0), (5.0, 0.0), (5.0, 0.05)):
        for n in DECISIONS:
            found = []
            for seed in range(options.repetitions):
                generator = np.random.default_rng([seed, n])
                log_odds, said, drawn = decisions(n, bias, wrong, generator)
                fits = [
                    Recalibration(),
                    fit_recalibration(log_odds, said),
                    fit_recalibration(log_odds, said, ~drawn),
                    fit_recalibration(log_odds[drawn], said[drawn]),
                ]
                found.append([error_of(fit, generator) for fit in fits])
            means = [f"{mean:.3f}" for mean in np.mean(found, axis=0)]
            rows.append([f"{n:,}", f"{bias:g}", f"{100 * wrong:g} %", *means])
            print(*rows[-1], sep="\t", flush=True)
    record_table("reviewers", COLUMNS, rows, globals(), COMMAND, ABOUT)


if __name__ == "__main__":
    main()
