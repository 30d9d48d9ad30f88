"""Divergences against Monte Carlo, quadrature and the figures that the papers' forms get wrong."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad

from model_store.sphere import (
    kl_divergence,
    kl_divergence_to_uniform,
    log_bhattacharyya_coefficient,
    log_expected_likelihood,
    log_normaliser,
    sample_von_mises_fisher,
)

dims = st.integers(2, 4096)
concentrations = st.floats(0, 1e5)
cosines = st.floats(-1, 1)
KAPPA, OTHER, COSINE, DIM = 30.0, 18.0, 0.75, 7


@pytest.fixture(scope="module")
def log_densities() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log p and log q at 200,000 draws of p."""
    p, q = np.eye(DIM)[0], np.eye(DIM)[0] * COSINE + np.eye(DIM)[3] * np.sqrt(1 - COSINE**2)
    x = sample_von_mises_fisher(p, KAPPA, 200_000, np.random.default_rng(0))
    log_p = log_normaliser(KAPPA, DIM) + KAPPA * x @ p
    return log_p, log_normaliser(OTHER, DIM) + OTHER * x @ q


def assert_is_mean_of(value: NDArray[np.float64], draws: NDArray[np.float64]) -> None:
    standard_error = draws.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - value) < 4 * standard_error
    assert standard_error < 0.02 * abs(value)


Densities = tuple[NDArray[np.float64], NDArray[np.float64]]


def test_kl_divergence_by_monte_carlo(log_densities: Densities) -> None:
    log_p, log_q = log_densities
    assert_is_mean_of(kl_divergence(KAPPA, OTHER, COSINE, DIM), log_p - log_q)


def test_kl_divergence_to_uniform_by_monte_carlo(log_densities: Densities) -> None:
    log_p, _ = log_densities
    assert_is_mean_of(kl_divergence_to_uniform(KAPPA, DIM), log_p - log_normaliser(0.0, DIM))


def test_expected_likelihood_by_monte_carlo(log_densities: Densities) -> None:
    _, log_q = log_densities
    value = np.exp(log_expected_likelihood(KAPPA, OTHER, COSINE, DIM))
    assert_is_mean_of(value, np.exp(log_q))


def test_bhattacharyya_by_monte_carlo(log_densities: Densities) -> None:
    log_p, log_q = log_densities
    value = np.exp(log_bhattacharyya_coefficient(KAPPA, OTHER, COSINE, DIM))
    assert_is_mean_of(value, np.exp((log_q - log_p) / 2))


def test_all_by_quadrature_on_the_circle() -> None:
    kappa, other, angle = 3.0, 8.0, 1.2

    def log_p(t: float) -> float:
        return float(log_normaliser(kappa, 2) + kappa * np.cos(t))

    def log_q(t: float) -> float:
        return float(log_normaliser(other, 2) + other * np.cos(t - angle))

    def integral(of: Callable[[float], float]) -> float:
        return float(quad(of, -np.pi, np.pi, epsabs=1e-12)[0])

    arguments = (kappa, other, np.cos(angle), 2)
    assert kl_divergence(*arguments) == pytest.approx(
        integral(lambda t: np.exp(log_p(t)) * (log_p(t) - log_q(t))), rel=1e-9
    )
    assert log_expected_likelihood(*arguments) == pytest.approx(
        np.log(integral(lambda t: np.exp(log_p(t) + log_q(t)))), rel=1e-9
    )
    assert log_bhattacharyya_coefficient(*arguments) == pytest.approx(
        np.log(integral(lambda t: np.exp((log_p(t) + log_q(t)) / 2))), rel=1e-9
    )


@pytest.mark.parametrize(
    ("concentration", "truth", "listing"),
    [(10, 0.098, -345), (100, 9.25, -255), (1000, 236, 645), (10_000, 767, 9645)],
)
def test_kl_to_uniform_is_not_kappa_minus_dim_log_two(
    concentration: float, truth: float, listing: float
) -> None:
    """Warburg et al. 2021, Listing 2, at D = 512."""
    assert concentration - 512 * np.log(2) == pytest.approx(listing, abs=0.5)
    assert kl_divergence_to_uniform(concentration, 512) == pytest.approx(truth, rel=5e-3)


@pytest.mark.parametrize(("dim", "truth", "printed"), [(512, 3.907, 51.57), (128, 9.360, 35.89)])
def test_kl_takes_the_mean_and_not_the_mean_direction(
    dim: int, truth: float, printed: float
) -> None:
    """Kirchhof et al. 2022, Eq. 39 puts μ where E[x] = A μ belongs."""
    cosine = 0.82531
    eq_39 = log_normaliser(100, dim) - log_normaliser(50, dim) + 100 - 50 * cosine
    assert eq_39 == pytest.approx(printed, abs=0.01)
    assert kl_divergence(100, 50, cosine, dim) == pytest.approx(truth, abs=0.001)


@pytest.mark.parametrize(
    ("dim", "fit", "errors"),
    [
        (128, (127, -0.01909, -0.003355), {100: -3.5, 140: -12.5, 200: -40.6, 500: -503}),
        (512, (868, -0.0002662, -0.0009685), {100: -0.09, 140: -0.5, 200: -2.2, 500: -56}),
    ],
)
def test_quadratic_fits_of_the_normaliser_hold_to_fifty_only(
    dim: int, fit: tuple[float, float, float], errors: dict[int, float]
) -> None:
    """Kirchhof et al. 2022, Eq. 12-13."""

    def error(kappa: float) -> float:
        return float(fit[0] + fit[1] * kappa + fit[2] * kappa**2 - log_normaliser(kappa, dim))

    assert all(abs(error(kappa)) < 0.25 for kappa in range(10, 51))
    for kappa, expected in errors.items():
        assert error(kappa) == pytest.approx(expected, rel=0.02)


@given(dim=dims, kappa=concentrations, other=concentrations, cosine=cosines)
def test_laws(dim: int, kappa: float, other: float, cosine: float) -> None:
    tolerance = 1e-14 * (kappa + other) + 1e-11
    assert 0 <= kl_divergence(kappa, other, cosine, dim) < np.inf
    # Bhattacharyya: symmetric, at most 1, and KL(p ‖ q) ≥ −2 log of it.
    coefficient = log_bhattacharyya_coefficient(kappa, other, cosine, dim)
    assert -np.inf < coefficient <= 0
    swapped = log_bhattacharyya_coefficient(other, kappa, cosine, dim)
    assert coefficient == pytest.approx(swapped, abs=tolerance)
    assert kl_divergence(kappa, other, cosine, dim) >= -2 * coefficient - tolerance
    # Expected likelihood: symmetric, and Cauchy-Schwarz.
    likelihood = log_expected_likelihood(kappa, other, cosine, dim)
    swapped = log_expected_likelihood(other, kappa, cosine, dim)
    assert likelihood == pytest.approx(swapped, abs=tolerance)
    own = log_expected_likelihood([kappa, other], [kappa, other], 1.0, dim)
    assert likelihood <= own.mean() + tolerance


@given(dim=dims, kappa=concentrations)
def test_equal_and_uniform_limits(dim: int, kappa: float) -> None:
    tolerance = 1e-14 * kappa + 1e-11
    assert kl_divergence(kappa, kappa, 1.0, dim) == pytest.approx(0, abs=tolerance)
    assert log_bhattacharyya_coefficient(kappa, kappa, 1.0, dim) == pytest.approx(0, abs=tolerance)
    to_uniform = kl_divergence_to_uniform(kappa, dim)
    assert kl_divergence(kappa, 0.0, -0.3, dim) == pytest.approx(to_uniform, abs=tolerance)
    assert log_expected_likelihood(kappa, 0.0, 0.3, dim) == pytest.approx(
        log_normaliser(0.0, dim), abs=tolerance
    )


@given(dim=dims, kappa=st.floats(1e-8, 1e-3))
def test_kl_to_uniform_near_zero_keeps_its_digits(dim: int, kappa: float) -> None:
    assert kl_divergence_to_uniform(kappa, dim) == pytest.approx(kappa**2 / (2 * dim), rel=1e-6)


def test_one_call_serves_a_table_of_pairs() -> None:
    rng = np.random.default_rng(0)
    kappa, other, cosine = rng.random((3, 1)) * 50, rng.random(4) * 50, rng.random((3, 4))
    for function in (kl_divergence, log_expected_likelihood, log_bhattacharyya_coefficient):
        table = function(kappa, other, cosine, 9)
        assert table.shape == (3, 4)
        assert table[2, 1] == pytest.approx(
            float(function(kappa[2, 0], other[1], cosine[2, 1], 9)), rel=1e-12
        )


def test_cosine_beyond_one_by_rounding_counts_as_one() -> None:
    assert kl_divergence(9.0, 4.0, 1 + 1e-6, 5) == kl_divergence(9.0, 4.0, 1.0, 5)
