"""Estimators of κ: inverse of A_D, the published bias figures, and recovery from draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.sphere import (
    MAX_CONCENTRATION,
    approximate_concentration,
    concentration_of,
    debiased_resultant_length,
    fit_von_mises_fisher,
    mean_resultant_length,
    sample_von_mises_fisher,
)


@given(dim=st.integers(2, 4096), log_concentration=st.floats(-3, 5))
def test_inverts_the_mean_resultant_length(dim: int, log_concentration: float) -> None:
    kappa = 10.0**log_concentration
    estimate = concentration_of(mean_resultant_length(kappa, dim), dim)
    assert estimate == pytest.approx(kappa, rel=2e-10 if kappa > 1e3 else 1e-12)


@given(dim=st.integers(2, 4096), length=st.floats(0, 1))
def test_every_resultant_length_has_a_finite_concentration(dim: int, length: float) -> None:
    for estimator in (approximate_concentration, concentration_of):
        assert 0 <= estimator(length, dim) <= MAX_CONCENTRATION


def test_ends_of_the_range() -> None:
    np.testing.assert_array_equal(
        concentration_of([0.0, 1.0, 1 + 1e-7], 64), [0.0, MAX_CONCENTRATION, MAX_CONCENTRATION]
    )


@pytest.mark.parametrize("length", [-0.1, 1.01, np.nan])
def test_refuses_what_is_no_resultant_length(length: float) -> None:
    for estimator in (approximate_concentration, concentration_of):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            estimator([0.5, length], 8)


@pytest.mark.parametrize(
    ("dim", "concentration", "bias", "tolerance"),
    [(3, 10, 0.037, 5e-4), (128, 100, 0.0013, 5e-5), (512, 565, 0.0003, 5e-5)],
)
def test_bias_of_the_closed_form(
    dim: int, concentration: float, bias: float, tolerance: float
) -> None:
    length = mean_resultant_length(concentration, dim)
    relative = approximate_concentration(length, dim) / concentration - 1
    assert relative == pytest.approx(bias, abs=tolerance)


@pytest.mark.parametrize(
    ("concentration", "n_samples", "uncorrected"),
    [(0, 100, 51.7), (100, 100, 113.9), (0, 5, 286.1)],
)
def test_finite_sample_bias_and_its_removal(
    concentration: float, n_samples: int, uncorrected: float
) -> None:
    dim = 512
    squared = mean_resultant_length(concentration, dim) ** 2
    expected_length = np.sqrt(1 / n_samples + (1 - 1 / n_samples) * squared)
    biased = approximate_concentration(expected_length, dim)
    assert biased == pytest.approx(uncorrected, abs=0.1)
    corrected = concentration_of(debiased_resultant_length(expected_length, n_samples), dim)
    assert corrected == pytest.approx(concentration, abs=1e-4)


def test_debiasing_is_right_on_average_over_draws() -> None:
    rng = np.random.default_rng(0)
    dim, n_samples, kappa = 16, 5, 12.0
    direction = rng.standard_normal(dim)
    draws = sample_von_mises_fisher(np.tile(direction, (4000, 1)), kappa, n_samples, rng)
    lengths = np.linalg.norm(draws.mean(axis=-2), axis=-1)
    squared = (n_samples * lengths**2 - 1) / (n_samples - 1)
    standard_error = squared.std() / np.sqrt(4000)
    truth = mean_resultant_length(kappa, dim) ** 2
    assert abs(squared.mean() - truth) < 4 * standard_error
    assert abs((lengths**2).mean() - truth) > 20 * standard_error
    np.testing.assert_array_equal(
        debiased_resultant_length(lengths, n_samples), np.sqrt(np.maximum(squared, 0))
    )


@pytest.mark.parametrize(("dim", "concentration"), [(3, 5.0), (64, 100.0), (300, 1000.0)])
def test_fit_recovers_direction_and_concentration(dim: int, concentration: float) -> None:
    rng = np.random.default_rng(dim)
    truth = rng.standard_normal((2, dim))
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    draws = sample_von_mises_fisher(truth, [concentration, 2 * concentration], 4000, rng)
    direction, kappa = fit_von_mises_fisher(draws.astype(np.float32))
    assert direction.dtype == np.float32
    np.testing.assert_allclose((direction * truth).sum(-1), 1, atol=2e-3)
    np.testing.assert_allclose(kappa, [concentration, 2 * concentration], rtol=0.06)


def test_fit_needs_two_samples_and_a_direction() -> None:
    with pytest.raises(ValueError, match="2 samples"):
        fit_von_mises_fisher(np.eye(3)[:1])
    with pytest.raises(ValueError, match="no direction"):
        fit_von_mises_fisher(np.array([[1.0, 0.0], [-1.0, 0.0]]))
