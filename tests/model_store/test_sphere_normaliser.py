"""log C_D, A_D and A_D' against mpmath, SciPy, their differential equation and their limits."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import vonmises_fisher

from model_store.sphere import (
    cumulant_generating_function,
    log_normaliser,
    mean_resultant_length,
    mean_resultant_length_derivative,
)

DIMS = [2, 3, 4, 7, 16, 49, 50, 51, 64, 128, 513, 2048, 4096]
CONCENTRATIONS = np.array(
    [1e-6, 1e-3, 0.02, 0.3, 1.0, 2.5, 6.0, 7.3, 10.0, 31.0, 77.0, 180.0, 560.0, 3e3, 2e4, 1e5, 1e7]
)
dims = st.integers(2, 4096)
concentrations = st.floats(0, 1e5)


@pytest.fixture(scope="module", params=DIMS)
def reference(request: pytest.FixtureRequest) -> tuple[int, np.ndarray]:
    """K, A and A' to 60 digits, shape (3, concentrations), and their dimension."""
    dim = request.param
    rows = []
    with mpmath.workdps(60):
        order = mpmath.mpf(dim) / 2 - 1
        for concentration in CONCENTRATIONS:
            kappa = mpmath.mpf(float(concentration))
            bessel = mpmath.besseli(order, kappa, maxterms=10**6)
            length = mpmath.besseli(order + 1, kappa, maxterms=10**6) / bessel
            generating = mpmath.loggamma(order + 1) + order * mpmath.log(2 / kappa)
            generating += mpmath.log(bessel)
            slope = 1 - length**2 - (dim - 1) / kappa * length
            rows.append([float(generating), float(length), float(slope)])
    return dim, np.array(rows).T


def test_cumulant_generating_function(reference: tuple[int, np.ndarray]) -> None:
    dim, (generating, _, _) = reference
    np.testing.assert_allclose(
        cumulant_generating_function(CONCENTRATIONS, dim), generating, rtol=1e-15
    )


def test_mean_resultant_length(reference: tuple[int, np.ndarray]) -> None:
    dim, (_, length, _) = reference
    np.testing.assert_allclose(mean_resultant_length(CONCENTRATIONS, dim), length, rtol=1e-15)


def test_mean_resultant_length_derivative(reference: tuple[int, np.ndarray]) -> None:
    dim, (_, _, slope) = reference
    tolerance = 2e-15 if dim >= 50 else 1e-12
    actual = mean_resultant_length_derivative(CONCENTRATIONS, dim)
    np.testing.assert_allclose(actual, slope, rtol=tolerance)


def test_log_normaliser(reference: tuple[int, np.ndarray]) -> None:
    dim, (generating, _, _) = reference
    with mpmath.workdps(60):
        half = mpmath.mpf(dim) / 2
        uniform = mpmath.loggamma(half) - mpmath.log(2) - half * mpmath.log(mpmath.pi)
        expected = np.array([float(uniform - mpmath.mpf(float(k))) for k in generating])
    np.testing.assert_allclose(
        log_normaliser(CONCENTRATIONS, dim), expected, rtol=1e-13, atol=1e-13
    )


def log_density_of_scipy(
    mean: NDArray[np.float64], concentration: float, x: NDArray[np.float64]
) -> float:
    scipys = vonmises_fisher(mean, concentration)  # type: ignore[arg-type] # its stub says int
    return float(scipys.logpdf(x))


@pytest.mark.parametrize(("dim", "concentration"), [(2, 0.7), (3, 40.0), (10, 200.0), (64, 90.0)])
def test_log_density_is_scipys_where_scipy_does_not_underflow(
    dim: int, concentration: float
) -> None:
    rng = np.random.default_rng(dim)
    mean, x = rng.standard_normal((2, dim))
    mean, x = mean / np.linalg.norm(mean), x / np.linalg.norm(x)
    ours = log_normaliser(concentration, dim) + concentration * mean @ x
    assert ours == pytest.approx(log_density_of_scipy(mean, concentration, x), rel=1e-12)


@pytest.mark.parametrize(("dim", "concentration"), [(512, 10.0), (1024, 100.0), (2048, 500.0)])
def test_finite_where_scipy_is_not(dim: int, concentration: float) -> None:
    mean = np.eye(dim)[0]
    with np.errstate(divide="ignore"):
        assert np.isinf(log_density_of_scipy(mean, concentration, mean))
    assert np.isfinite(log_normaliser(concentration, dim))


@pytest.mark.parametrize("dim", DIMS)
def test_uniform_limit(dim: int) -> None:
    log_area = np.log(2) + dim / 2 * np.log(np.pi) - gammaln(dim / 2)
    assert log_normaliser(0.0, dim) == pytest.approx(-log_area, rel=1e-14)
    assert cumulant_generating_function(0.0, dim) == 0
    assert mean_resultant_length(0.0, dim) == 0
    assert mean_resultant_length_derivative(0.0, dim) == pytest.approx(1 / dim, rel=1e-15)


def test_the_circle_and_the_ordinary_sphere_have_elementary_forms() -> None:
    kappa = np.array([0.2, 1.0, 5.0, 30.0])
    np.testing.assert_allclose(np.exp(-log_normaliser(0.0, 2)), 2 * np.pi, rtol=1e-14)
    np.testing.assert_allclose(np.exp(-log_normaliser(0.0, 3)), 4 * np.pi, rtol=1e-14)
    np.testing.assert_allclose(
        log_normaliser(kappa, 3), np.log(kappa / (4 * np.pi * np.sinh(kappa))), rtol=1e-13
    )
    np.testing.assert_allclose(
        mean_resultant_length(kappa, 3), 1 / np.tanh(kappa) - 1 / kappa, rtol=1e-13
    )


@given(dim=dims, concentration=st.floats(1e-3, 1e5))
def test_each_is_the_derivative_of_the_one_before(dim: int, concentration: float) -> None:
    step = 1e-4 * concentration
    around = np.array([concentration - step, concentration + step])
    for function, derivative in (
        (cumulant_generating_function, mean_resultant_length),
        (mean_resultant_length, mean_resultant_length_derivative),
    ):
        below, above = function(around, dim)
        # Central differences: step² of truncation, and rounding over the step; a ratio of Bessel
        # functions is right to some units in the last place.
        noise = 1e-15 * above / step
        assert (above - below) / (2 * step) == pytest.approx(
            float(derivative(concentration, dim)), rel=1e-6, abs=noise
        )


@given(dim=dims, concentration=concentrations)
def test_differential_equation(dim: int, concentration: float) -> None:
    length = mean_resultant_length(concentration, dim)
    slope = mean_resultant_length_derivative(concentration, dim)
    # Multiplied by κ, so that κ = 0 needs no exception.
    assert concentration * slope == pytest.approx(
        concentration * (1 - length**2) - (dim - 1) * length, abs=4e-15 * (concentration + dim)
    )


@given(
    dim=dims,
    pair=st.tuples(concentrations, concentrations).filter(lambda p: abs(p[0] - p[1]) > 1e-6),
)
def test_mean_resultant_length_is_monotone_and_below_one(
    dim: int, pair: tuple[float, float]
) -> None:
    lower, higher = mean_resultant_length(np.sort(pair), dim)
    assert 0 <= lower < 1
    assert 0 < higher < 1
    assert lower <= higher


@given(dim=dims, concentration=st.floats(0, 1e149))
def test_never_infinite_or_nan(dim: int, concentration: float) -> None:
    values = [
        function(concentration, dim)
        for function in (
            cumulant_generating_function,
            log_normaliser,
            mean_resultant_length,
            mean_resultant_length_derivative,
        )
    ]
    assert np.isfinite(values).all()
    assert 0 <= values[0] <= concentration * (1 + 1e-15)
    assert 0 <= values[2] <= 1
    assert values[3] >= 0


def test_shapes_and_types() -> None:
    kappa = np.random.default_rng(0).random((2, 3)).astype(np.float32) * 100
    for dim in (5, 200):
        values = log_normaliser(kappa, dim)
        assert values.shape == (2, 3)
        assert values.dtype == np.float64
        np.testing.assert_array_equal(values[1, 2], log_normaliser(kappa[1, 2], dim))
    assert log_normaliser(np.empty(0), 5).shape == (0,)


@pytest.mark.parametrize("concentration", [-1e-9, np.nan, np.inf, 1e151])
def test_refuses_what_is_no_concentration(concentration: float) -> None:
    with pytest.raises(ValueError, match="finite and ≥ 0"):
        log_normaliser([1.0, concentration], 3)


def test_refuses_what_is_no_sphere() -> None:
    with pytest.raises(ValueError, match="dim is 1"):
        log_normaliser(1.0, 1)
