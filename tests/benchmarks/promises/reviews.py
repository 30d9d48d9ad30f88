"""Reviews that the error rate of matches needs: weighted draws over draws of one probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model_store.decision import (
    BlockSums,
    MatchDraw,
    MatchReview,
    ReviewDraws,
    estimate_error,
)

from .answers import answer_all
from .measures import ALPHA, STATED, AnyWorld, Record, calibrate

SHARE = 0.1
"""Of matches that are drawn for review."""

N_ALIKE = 300
"""Reviews of draws of one probability, whose interval weighted draws have to reach."""

N_STREAMS = 20
"""Streams of each calibration."""

REVIEWED = ("Caltech-101", "Omniglot")
"""Real worlds."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def measure_reviews(world: AnyWorld, seed: int) -> Record:
    """Calibrate once, and count reviews on streams of its matches.

    Returns
    -------
    ratio : reviews that weighted draws need, over `N_ALIKE`, for the same width of the interval.
    missed : share of streams whose interval does not hold the true error rate, for both draws.
    """
    calibration = calibrate(world, seed)
    parts = [
        answer_all(world.encoder, world.gallery, calibration, images)
        for images in (world.matched, world.absent)
    ]
    called = [one.is_match(calibration, STATED, ALPHA) for one in parts]
    if not called[0].any():
        return {"refused": "no first item is called a match"}
    probabilities = np.concatenate(
        [one.at_share(calibration, STATED)[some] for one, some in zip(parts, called, strict=True)]
    )
    wrong = np.concatenate([~one.correct[some] for one, some in zip(parts, called, strict=True)])
    weights = np.repeat(
        [(1 - STATED) / len(parts[0]), STATED / len(parts[1])], [some.sum() for some in called]
    )
    weights /= weights.sum()
    truth = float(weights @ wrong)
    generator, draws = np.random.default_rng([seed, 5]), ReviewDraws.of(calibration, SHARE)
    ratios, missed = [], np.zeros(2)
    for _ in range(N_STREAMS):
        served = generator.choice(len(weights), 2 * round(N_ALIKE / SHARE), p=weights)
        alike = of_draws(None, probabilities[served], wrong[served], generator)[:N_ALIKE]
        drawn = of_draws(draws, probabilities[served], wrong[served], generator)
        ratios.append(needed(drawn, width(alike)) / N_ALIKE)
        for place, reviews in enumerate((alike, drawn[:N_ALIKE])):
            lower, upper = estimate_error(reviews).interval
            missed[place] += not lower <= truth <= upper
    return {
        "error": truth,
        "expected_error": float(weights @ (1 - probabilities)),
        "ratio": float(np.mean(ratios)),
        "missed_alike": missed[0] / N_STREAMS,
        "missed": missed[1] / N_STREAMS,
    }


def of_draws(
    draws: ReviewDraws | None,
    probabilities: Floats,
    wrong: Bools,
    generator: np.random.Generator,
) -> list[MatchReview]:
    """Draw matches as the service does, or all alike, as where ``draws`` is None; review them."""
    sums, found = BlockSums(), []
    for p, is_wrong in zip(probabilities.tolist(), wrong.tolist(), strict=True):
        if draws is None:
            if generator.random() < SHARE:
                found.append(MatchReview(is_wrong, MatchDraw(1 - p)))
            continue
        probability = draws.probability(p, is_match=True)
        predicted = draws.predicted_error(1 - p, probability)
        if generator.random() < probability:
            found.append(MatchReview(is_wrong, sums.close(predicted, probability, draws.least)))
        else:
            sums.add(predicted)
    return found


def width(reviews: list[MatchReview]) -> float:
    """Return the width of the interval of the error rate, before it ends at 0."""
    estimate = estimate_error(reviews)
    assert estimate.rate is not None
    return 2 * (estimate.interval[1] - estimate.rate)


def needed(reviews: list[MatchReview], least: float) -> int:
    """Return the first number of reviews whose interval is no wider than ``least``."""
    for n in range(30, len(reviews), 5):
        if width(reviews[:n]) <= least:
            return n
    return len(reviews)
