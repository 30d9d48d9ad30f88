"""Diagonal Gaussian algebra against Monte Carlo and the printed formula."""

from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import norm

from model_store.gaussian import (
    DiagonalGaussian,
    NumpyGaussian,
    log_probability_ranks_above,
    probability_ranks_above,
    squared_distance_moments,
    triplet_margin_moments,
)

N_DRAWS = 100_000

Floats = NDArray[np.floating[Any]]


def gaussian(rng: np.random.Generator, *shape: int, spread: float = 1.0) -> NumpyGaussian:
    return DiagonalGaussian(rng.standard_normal(shape), spread * rng.exponential(size=shape))


def fixed(mean: Floats, variance: Floats) -> NumpyGaussian:
    return DiagonalGaussian(mean, variance)


def draw(of: NumpyGaussian, rng: np.random.Generator) -> NDArray[np.float64]:
    noise = rng.standard_normal((N_DRAWS, *of.mean.shape))
    return np.asarray(of.mean + np.sqrt(of.variance) * noise)


def assert_moments_of(draws: NDArray[np.float64], mean: Floats, variance: Floats) -> None:
    """Within four standard errors, by the draws' own second and fourth moments."""
    centred = draws - draws.mean(axis=0)
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * draws.std(axis=0) / np.sqrt(N_DRAWS)).all()
    error = (centred**2).std(axis=0) / np.sqrt(N_DRAWS)
    assert (np.abs(draws.var(axis=0) - variance) < 4 * error).all()
    assert (error < 0.03 * variance).all()


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_squared_distance_moments(dim: int) -> None:
    rng = np.random.default_rng(dim)
    query, item = gaussian(rng, 3, dim), gaussian(rng, 3, dim, spread=0.3)
    moments = squared_distance_moments(query.mean - item.mean, query.variance + item.variance)
    distances = ((draw(query, rng) - draw(item, rng)) ** 2).sum(-1)
    assert_moments_of(distances, *moments)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_triplet_margin_moments(dim: int) -> None:
    rng = np.random.default_rng(dim)
    anchor = gaussian(rng, 3, dim)
    positive, negative = gaussian(rng, 3, dim, spread=0.3), gaussian(rng, 3, dim, spread=2.0)
    a, p, n = draw(anchor, rng), draw(positive, rng), draw(negative, rng)
    margins = ((a - p) ** 2).sum(-1) - ((a - n) ** 2).sum(-1)
    assert_moments_of(margins, *triplet_margin_moments(anchor, positive, negative))


def test_triplet_variance_is_the_papers_regrouped() -> None:
    """Warburg et al. 2021: 2 T1 + 2 T2 − 8 μ_p μ_n σ²_a, with T from Eq. 17 and 18."""
    rng = np.random.default_rng(5)
    (ma, va), (mp, vp), (mn, vn) = (gaussian(rng, 4, 6) for _ in range(3))

    def term(mean: Floats, variance: Floats) -> Floats:
        crossed = (va + ma**2) * (variance + mean**2) - ma**2 * mean**2
        return variance**2 + 2 * mean**2 * variance + 2 * crossed - 4 * ma * mean * variance

    printed = (2 * term(mp, vp) + 2 * term(mn, vn) - 8 * mp * mn * va).sum(-1)
    _, variance = triplet_margin_moments(
        DiagonalGaussian(ma, va), DiagonalGaussian(mp, vp), DiagonalGaussian(mn, vn)
    )
    np.testing.assert_allclose(variance, printed, rtol=1e-12)


def test_float32_stays_float32_and_batches_broadcast() -> None:
    rng = np.random.default_rng(7)
    query, items = gaussian(rng, 2, 1, 1, 5), gaussian(rng, 1, 3, 4, 5)
    single = [DiagonalGaussian(*(part.astype(np.float32) for part in g)) for g in (query, items)]
    mean, variance = triplet_margin_moments(single[0], single[1], single[1])
    assert mean.shape == variance.shape == (2, 3, 4)
    assert mean.dtype == variance.dtype == np.float32


def test_isotropic_variance_may_have_one_column() -> None:
    rng = np.random.default_rng(8)
    means = rng.standard_normal((3, 4, 6))
    variances = rng.random((3, 4, 1))
    narrow = [DiagonalGaussian(*pair) for pair in zip(means, variances, strict=True)]
    wide = [DiagonalGaussian(m, np.repeat(v, 6, axis=1)) for m, v in narrow]
    np.testing.assert_allclose(triplet_margin_moments(*narrow), triplet_margin_moments(*wide))


@pytest.mark.parametrize(("dim", "gap"), [(4, 0.06), (128, 0.015)])
def test_probability_against_draws(dim: int, gap: float) -> None:
    rng = np.random.default_rng(dim)
    query, item, rival = (gaussian(rng, 5, dim, spread=0.5) for _ in range(3))
    n = 4000
    q, a, b = (
        g.mean + np.sqrt(g.variance) * rng.standard_normal((n, 5, dim))
        for g in (query, item, rival)
    )
    share = (((q - a) ** 2).sum(-1) < ((q - b) ** 2).sum(-1)).mean(axis=0)
    standard_error = 0.5 / np.sqrt(n)
    probability = probability_ranks_above(query, item, rival)
    assert (np.abs(probability - share) < gap + 4 * standard_error).all()
    assert share.std() > 0.05


def test_probability_is_the_normal_distribution_function_of_the_margin() -> None:
    rng = np.random.default_rng(9)
    query, item, rival = (gaussian(rng, 7, 3) for _ in range(3))
    mean, variance = triplet_margin_moments(query, item, rival)
    expected = norm(mean, np.sqrt(variance)).cdf(0)
    np.testing.assert_allclose(probability_ranks_above(query, item, rival), expected, rtol=1e-12)
    np.testing.assert_allclose(
        log_probability_ranks_above(query, item, rival), np.log(expected), rtol=1e-12
    )


def test_logarithm_survives_where_the_probability_underflows() -> None:
    query = fixed(np.zeros((1, 2)), np.zeros((1, 2)))
    near = fixed(np.array([[1e-6, 0.0]]), np.full((1, 2), 1e-12))
    far = fixed(np.array([[3.0, 0.0]]), np.full((1, 2), 1e-4))
    mean, variance = triplet_margin_moments(query, far, near)
    with mpmath.workdps(30):
        z = mpmath.mpf(float(mean[0])) / mpmath.sqrt(mpmath.mpf(float(variance[0])))
        expected = float(mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2))
    assert probability_ranks_above(query, far, near) == 0
    assert log_probability_ranks_above(query, far, near) == pytest.approx(expected, rel=1e-9)


parts = arrays(np.float64, (6, 4), elements=st.floats(-50, 50))


@given(parts=parts)
@example(parts=np.where(np.arange(24).reshape(6, 4) == 0, 1e-85, 1e-208))  # tied but for rounding
def test_one_of_the_two_is_nearer(parts: NDArray[np.float64]) -> None:
    query, item, rival = (DiagonalGaussian(parts[i], np.abs(parts[i + 3])) for i in range(3))
    forth = probability_ranks_above(query, item, rival)
    back = probability_ranks_above(query, rival, item)
    assert 0 <= forth <= 1
    assert forth + back == pytest.approx(1, abs=1e-12)
    assert log_probability_ranks_above(query, item, rival) <= 0


def test_where_nothing_varies_the_nearer_is_certain() -> None:
    still = np.zeros((3, 2))
    query = fixed(np.zeros((3, 2)), still)
    item = fixed(np.array([[1.0, 0], [2.0, 0], [0, 1.0]]), still)
    rival = fixed(np.array([[2.0, 0], [1.0, 0], [1.0, 0]]), still)
    np.testing.assert_array_equal(probability_ranks_above(query, item, rival), [1.0, 0.0, 0.5])
    np.testing.assert_array_equal(
        log_probability_ranks_above(query, item, rival), [0.0, -np.inf, np.log(0.5)]
    )
