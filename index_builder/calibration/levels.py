"""Measures the most probable parents of calibration queries, for example genus and family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.probabilities import Examples
from index_builder.metrics import calibration_error, reliability
from model_store.decision import Calibration, Hierarchy, LevelEvidence, likeliest_parents


def level_evidence(
    hierarchy: Hierarchy,
    labels: Sequence[str],
    withheld: Sequence[str | None],
    examples: Examples,
    probabilities: NDArray[np.float64],
) -> LevelEvidence:
    """Compare the most probable parents of Q queries with their true parents.

    Parameters
    ----------
    labels : labels of the gallery, by code.
    withheld : (Q,) the query's label if the gallery does not contain it; otherwise None.
    examples : the labels that queries find.
    probabilities : (N,) cross-fitted match probability of each label in ``examples``.
    """
    of_codes = hierarchy.of_labels([*labels, None])  # code −1 selects the last row: no label
    of_found = of_codes[np.maximum(examples.codes, -1)]
    own = hierarchy.of_labels(withheld)
    held = examples.labels >= 0
    own[held] = of_codes[examples.labels[held]]
    shape = len(examples.starts), len(hierarchy.levels)
    sums, correct = np.zeros(shape), np.zeros(shape, dtype=bool)
    ends = examples.starts + examples.counts
    for row, (start, end) in enumerate(zip(examples.starts, ends, strict=True)):
        places, sums[row] = likeliest_parents(of_found[start:end], probabilities[start:end])
        correct[row] = (places >= 0) & (places == own[row])
    return LevelEvidence(sums, correct)


def levels_measured(
    calibration: Calibration, weights: NDArray[np.float64]
) -> dict[str, list[dict[str, Any]]]:
    """For each level, measure the accuracy and the calibration of the most probable parent.

    A parent counts as right only if the query has a match in the gallery. The result is empty if
    labels have no parents.

    Parameters
    ----------
    weights : (N,) weights of the queries.
    """
    hierarchy, evidence = calibration.hierarchy, calibration.evidence
    if hierarchy is None or evidence.levels is None:
        return {}
    measured = []
    for level, (name, promises) in enumerate(
        zip(hierarchy.levels, calibration.promises().roll_ups, strict=True)
    ):
        right = evidence.levels.correct[:, level] & ~evidence.absent
        bins = reliability(evidence.levels.probabilities[:, level], right, weights=weights)
        measured.append(
            {
                "level": name,
                "n_labels": len(hierarchy.parents[level]),
                "accuracy": float(right[~evidence.absent].mean()),
                "ece": calibration_error(bins),
                "coverage": sum(one.point.coverage for one in promises if one.point is not None),
            }
        )
    return {"levels": measured}
