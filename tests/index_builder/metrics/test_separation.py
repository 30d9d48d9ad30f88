from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from index_builder.metrics import auprc, auroc, error_auroc, fpr_at_tpr, roc

Metric = Callable[[NDArray[np.float64], NDArray[np.float64]], float | None]


def tied(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(1, 7, 23) + 0.0, generator.integers(0, 6, 31) + 0.0


def as_torch(positives: np.ndarray, negatives: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    # torchmetrics squashes what lies outside [0, 1], which may merge values.
    values = torch.from_numpy(np.r_[positives, negatives] / 10)
    return values, torch.tensor([1] * len(positives) + [0] * len(negatives))


def test_auroc_counts_pairs_and_halves_ties() -> None:
    positives, negatives = tied(0)
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    assert auroc(positives, negatives) == pytest.approx(wins / (23 * 31))


def test_areas_agree_with_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    positives, negatives = tied(1)
    values = as_torch(positives, negatives)
    assert auroc(positives, negatives) == pytest.approx(binary_auroc(*values).item(), abs=1e-6)
    assert auprc(positives, negatives) == pytest.approx(
        binary_average_precision(*values).item(), abs=1e-6
    )


def test_fpr_at_tpr_is_the_best_of_all_thresholds() -> None:
    for seed in range(20):
        positives, negatives = tied(seed)
        thresholds = [t for t in np.r_[positives, negatives] if (positives >= t).mean() >= 0.9]
        best = min((negatives >= t).mean() for t in thresholds)
        assert fpr_at_tpr(positives, negatives, 0.9) == pytest.approx(best)


def test_the_curve_agrees_with_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_roc

    positives, negatives = tied(2)
    false_rates, true_rates = roc(positives, negatives)
    expected = binary_roc(*as_torch(positives, negatives))
    np.testing.assert_allclose(false_rates, expected[0].numpy(), atol=1e-6)
    np.testing.assert_allclose(true_rates, expected[1].numpy(), atol=1e-6)


def test_perfect_separation_alarms_nobody() -> None:
    assert fpr_at_tpr(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 0.0
    assert fpr_at_tpr(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 1.0


@pytest.mark.parametrize("metric", [auroc, auprc, fpr_at_tpr])
def test_nothing_cannot_be_told_from_something(metric: Metric) -> None:
    assert metric(np.array([]), np.array([1.0])) is None
    assert metric(np.array([1.0]), np.array([])) is None


@pytest.mark.parametrize("metric", [auroc, auprc, fpr_at_tpr])
def test_nan_is_refused(metric: Metric) -> None:
    with pytest.raises(ValueError, match="NaN"):
        metric(np.array([np.nan]), np.array([1.0]))


def test_errors_should_be_uncertain() -> None:
    uncertainties = np.array([0.1, 0.9, 0.2, 0.8])
    assert error_auroc(uncertainties, np.array([True, False, True, False])) == 1.0
    assert error_auroc(uncertainties, np.array([True, False, False, True])) == 0.75
    assert error_auroc(uncertainties, np.ones(4, dtype=bool)) is None
