"""The forecast of how many calibration queries a promise needs, beside how many it needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from index_builder.datasets.images import joined
from index_builder.datasets.splits import QuerySet
from model_store.errors import CalibrationError

from .measures import Record, calibrate
from .worlds import World

NUMBERS = (60, 85, 120, 170, 240, 340, 480, 680, 960)
"""Of calibration queries; the first is what the forecast is made from."""

ERRORS = (0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03)
"""That are asked for; what needs fewer queries than the first number, or more than there are, tells
nothing of the forecast."""

ORDERS = 5
"""In which the queries of one division of a set are taken: what divisions differ by, no query of
one can tell of another."""

LIKELY = 0.8
"""Share of calibrations that can promise what a number is said to be enough for."""


def division_of(seed: int) -> int:
    """Return the seed of the world that a repetition takes its queries from."""
    return seed // ORDERS


def plan(world: World, seed: int) -> Record:
    """Calibrate with ever more queries, and note what is forecast and what is promised.

    Returns
    -------
    ``promised`` and ``forecast``: by the number of queries, one entry for each of `ERRORS`; a
    forecast of 0 stands for none.
    """
    pool = joined(world.calibration.matched, world.matched)
    order = np.random.default_rng([seed, 7]).permutation(len(pool))
    record: Record = {"division": division_of(seed), "promised": {}, "forecast": {}}
    for n in NUMBERS:
        if n > len(pool):
            break
        matched = pool.at(order[:n])
        queries = QuerySet(matched, world.calibration.withheld, None)
        try:
            calibration = calibrate(replace(world, calibration=queries, unseen=False), seed)
        except CalibrationError:
            continue
        stream = calibration.promises().stream
        record["promised"][str(n)] = [stream.widest(error) is not None for error in ERRORS]
        record["forecast"][str(n)] = [stream.queries_needed(error) or 0 for error in ERRORS]
    return record


def compare_divisions(records: Sequence[Record]) -> Record:
    """Return `forecast_over_needed` of each division, and the median of all ratios."""
    divisions = {
        str(number): forecast_over_needed([one for one in records if one["division"] == number])
        for number in sorted({one["division"] for one in records})
    }
    ratios = [one["ratio"] for of_errors in divisions.values() for one in of_errors.values()]
    return {"ratio": float(np.median(ratios)) if ratios else None, "divisions": divisions}


def forecast_over_needed(records: Sequence[Record]) -> Record:
    """Compare the median forecast with the number from which `LIKELY` of calibrations promise.

    Both are of the calibrations that cannot promise it with the first number of queries: others are
    told no number, and the lucky ones among a division's would make it seem that fewer were needed.
    Between two numbers the share that can is taken to be linear in the logarithm.

    Returns
    -------
    For each error that tells something: ``forecast``, ``needed``, their ``ratio``, and the share of
    these calibrations that ``promised`` it with each number.
    """
    numbers = [str(n) for n in NUMBERS if all(str(n) in one["promised"] for one in records)]
    compared: Record = {}
    for place, error in enumerate(ERRORS if numbers else ()):
        told = [
            one
            for one in records
            if not one["promised"][numbers[0]][place] and one["forecast"][numbers[0]][place]
        ]
        if not told:
            continue
        forecasts = [one["forecast"][numbers[0]][place] for one in told]
        shares = [float(np.mean([one["promised"][n][place] for one in told])) for n in numbers]
        reached = [place for place, share in enumerate(shares) if share >= LIKELY]
        if not reached:
            continue
        before, after = reached[0] - 1, reached[0]
        low, high = np.log(int(numbers[before])), np.log(int(numbers[after]))
        part = (LIKELY - shares[before]) / (shares[after] - shares[before])
        needed, forecast = float(np.exp(low + part * (high - low))), float(np.median(forecasts))
        compared[f"{error:g}"] = {
            "forecast": forecast,
            "needed": needed,
            "ratio": forecast / needed,
            "promised": dict(zip(numbers, shares, strict=True)),
        }
    return compared
