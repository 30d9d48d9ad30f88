"""Draws of the von Mises-Fisher distribution against its moments and SciPy's sampler."""

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest, vonmises_fisher

from model_store.sphere import (
    mean_resultant_length,
    mean_resultant_length_derivative,
    sample_von_mises_fisher,
)


@pytest.mark.parametrize("dim", [2, 3, 10, 128])
@pytest.mark.parametrize("concentration", [0.0, 1e-3, 2.0, 150.0, 1e5])
def test_mean_and_variance_of_the_cosine(dim: int, concentration: float) -> None:
    rng = np.random.default_rng(dim)
    direction = rng.standard_normal(dim)
    draws = sample_von_mises_fisher(3 * direction, concentration, 8000, rng)
    assert draws.shape == (8000, dim)
    np.testing.assert_allclose(np.linalg.norm(draws, axis=-1), 1, rtol=1e-14)
    cosine = draws @ direction / np.linalg.norm(direction)
    variance = mean_resultant_length_derivative(concentration, dim)
    error = cosine.mean() - mean_resultant_length(concentration, dim)
    assert abs(error) < 4 * np.sqrt(variance / 8000)
    assert cosine.var() == pytest.approx(variance, rel=0.15)


def test_large_dimension() -> None:
    rng = np.random.default_rng(0)
    draws = sample_von_mises_fisher(np.eye(4096)[7], 500.0, 200, rng)
    variance = mean_resultant_length_derivative(500.0, 4096)
    error = draws[:, 7].mean() - mean_resultant_length(500.0, 4096)
    assert abs(error) < 4 * np.sqrt(variance / 200)


def test_around_the_mean_no_direction_is_preferred() -> None:
    rng = np.random.default_rng(1)
    draws = sample_von_mises_fisher(np.array([0.0, 0.0, 1.0]), 4.0, 5000, rng)
    angle = np.arctan2(draws[:, 1], draws[:, 0])
    assert kstest(angle, "uniform", args=(-np.pi, 2 * np.pi)).pvalue > 1e-3


def test_same_distribution_as_scipys() -> None:
    direction = np.ones(6) / np.sqrt(6)
    ours = sample_von_mises_fisher(direction, 8.0, 5000, np.random.default_rng(2))
    theirs = vonmises_fisher(direction, 8).rvs(5000, random_state=np.random.default_rng(3))
    assert ks_2samp(ours @ direction, theirs @ direction).pvalue > 1e-3
    assert ks_2samp(ours[:, 2], theirs[:, 2]).pvalue > 1e-3


def test_each_distribution_of_a_batch_has_its_own_concentration() -> None:
    rng = np.random.default_rng(4)
    directions = rng.standard_normal((2, 3, 5))
    kappa = np.array([1.0, 20.0, 400.0])
    draws = sample_von_mises_fisher(directions, kappa, 3000, rng)
    assert draws.shape == (2, 3, 3000, 5)
    lengths = np.linalg.norm(draws.mean(axis=-2), axis=-1)
    np.testing.assert_allclose(lengths, np.tile(mean_resultant_length(kappa, 5), (2, 1)), atol=0.03)


def test_the_generator_decides() -> None:
    first, again, other = (
        sample_von_mises_fisher(np.eye(4)[0], 5.0, 3, np.random.default_rng(seed))
        for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("concentration", [-1.0, np.nan, np.inf])
def test_refuses_what_is_no_concentration(concentration: float) -> None:
    with pytest.raises(ValueError, match="finite and ≥ 0"):
        sample_von_mises_fisher(np.eye(3)[0], concentration, 2, np.random.default_rng(0))


def test_refuses_a_mean_of_length_zero() -> None:
    with pytest.raises(ValueError, match="no direction"):
        sample_von_mises_fisher(np.zeros(3), 1.0, 2, np.random.default_rng(0))
