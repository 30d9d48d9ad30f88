"""Gaussian embeddings on the sphere: summary, draws and the fixed noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest

from model_store.sphere import (
    MAX_CONCENTRATION,
    base_noise,
    concentration_of,
    debiased_resultant_length,
    direction_and_concentration,
    mean_resultant_length,
    resultant_length_of_gaussian,
    sample_projected_normal,
    unit_direction,
)

vectors = arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)).filter(
    lambda array: bool((np.abs(array).max(axis=1) > 1e-20).all())
)


@given(vectors=vectors, exponent=st.integers(-30, 30))
def test_unit_direction_is_unit_at_any_scale(vectors: np.ndarray, exponent: int) -> None:
    scaled = vectors * np.float32(2.0) ** np.float32(exponent)
    unit = unit_direction(scaled)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1, rtol=1e-6)


def test_unit_direction_where_squares_would_overflow_or_vanish() -> None:
    vectors = np.array([[3e30, -4e30], [3e-30, -4e-30]], dtype=np.float32)
    np.testing.assert_allclose(unit_direction(vectors), [[0.6, -0.8]] * 2, rtol=1e-6)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_unit_direction_refuses_what_has_none(bad: float) -> None:
    vectors = np.ones((2, 3, 4), dtype=np.float32)
    vectors[1, 2] = bad
    with pytest.raises(ValueError, match=r"1 of 6 vectors .*first at \(1, 2\)"):
        unit_direction(vectors)


@pytest.mark.parametrize(
    ("dim", "total_variance"), [(64, 0.05), (128, 0.3), (128, 2.0), (300, 1.0)]
)
def test_closed_form_against_draws(dim: int, total_variance: float) -> None:
    rng = np.random.default_rng(dim)
    mean, variance = rng.standard_normal(dim), rng.exponential(size=dim)
    variance *= total_variance * (mean @ mean) / variance.sum()
    draws = sample_projected_normal(mean, variance, rng.standard_normal((6000, dim)))
    length = debiased_resultant_length(np.linalg.norm(draws.mean(axis=0)), 6000)
    closed = resultant_length_of_gaussian(mean, variance)
    assert 1 - closed == pytest.approx(1 - length, rel=0.03)
    direction, kappa = direction_and_concentration(mean, variance)
    assert kappa == pytest.approx(concentration_of(length, dim), rel=0.03)
    assert direction @ unit_direction(draws.mean(axis=0)) > 0.99


def test_one_part_in_dim_at_small_dispersion() -> None:
    """In the tangent plane only D − 1 of the D equal variances count; the closed form takes D."""
    dim, variance = 4, 1e-4
    mean = np.array([0.0, 2.0, 0.0, 0.0])
    exact = (dim - 1) * variance / (2 * mean @ mean)
    closed = 1 - resultant_length_of_gaussian(mean, np.full(dim, variance))
    assert closed / exact == pytest.approx(dim / (dim - 1), rel=1e-3)


def test_summary_keeps_types_and_shapes() -> None:
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((2, 3, 7)).astype(np.float32)
    variance = rng.random((2, 3, 7)).astype(np.float32)
    direction, kappa = direction_and_concentration(mean, variance)
    assert (direction.dtype.name, direction.shape) == ("float32", (2, 3, 7))
    assert (kappa.dtype.name, kappa.shape) == ("float64", (2, 3))
    np.testing.assert_allclose(
        mean_resultant_length(kappa, 7), resultant_length_of_gaussian(mean, variance), rtol=1e-10
    )
    np.testing.assert_array_equal(direction, unit_direction(mean))


@given(vectors=vectors, spread=st.floats(0, 1e6))
def test_resultant_length_is_a_length(vectors: np.ndarray, spread: float) -> None:
    length = resultant_length_of_gaussian(vectors, np.full_like(vectors, spread))
    assert ((length > 0) & (length <= 1)).all()
    wider = resultant_length_of_gaussian(vectors, np.full_like(vectors, spread + 1))
    assert (wider < length + 1e-15).all()


def test_a_point_has_the_largest_concentration() -> None:
    mean = np.array([[3.0, 4.0]])
    direction, kappa = direction_and_concentration(mean, np.zeros((1, 2)))
    np.testing.assert_allclose(direction, [[0.6, 0.8]])
    assert kappa.tolist() == [MAX_CONCENTRATION]


def test_mean_of_length_zero_is_refused() -> None:
    zero, one = np.zeros((1, 3)), np.ones((1, 3))
    for summary in (resultant_length_of_gaussian, direction_and_concentration):
        with pytest.raises(ValueError, match="no direction"):
            summary(zero, one)


def test_draws_of_a_zero_mean_are_the_noise_and_of_nothing_are_refused() -> None:
    noise = np.random.default_rng(0).standard_normal((6, 3))
    draws = sample_projected_normal(np.zeros(3), np.full(3, 4.0), noise)
    np.testing.assert_allclose(draws, unit_direction(noise), rtol=1e-14)
    with pytest.raises(ValueError, match="no direction"):
        sample_projected_normal(np.zeros(3), np.zeros(3), noise)


def test_draws_are_the_normalised_gaussian() -> None:
    rng = np.random.default_rng(1)
    mean = rng.standard_normal((2, 4, 5)).astype(np.float32)
    variance = rng.random((2, 4, 5)).astype(np.float32)
    noise = rng.standard_normal((3, 5)).astype(np.float32)
    draws = sample_projected_normal(mean, variance, noise)
    assert (draws.dtype.name, draws.shape) == ("float32", (2, 4, 3, 5))
    one = mean[1, 2] + np.sqrt(variance[1, 2]) * noise[0]
    np.testing.assert_allclose(draws[1, 2, 0], one / np.linalg.norm(one), rtol=1e-5, atol=1e-6)


def test_an_image_draws_the_same_alone_as_in_a_batch() -> None:
    rng = np.random.default_rng(2)
    mean = rng.standard_normal((9, 37)).astype(np.float32)
    variance = rng.random((9, 37)).astype(np.float32)
    noise = base_noise("encoder", 11, 37)
    batch = sample_projected_normal(mean, variance, noise)
    for row in range(9):
        alone = sample_projected_normal(mean[row], variance[row], noise)
        np.testing.assert_array_equal(alone, batch[row])


def test_base_noise_is_standard_normal() -> None:
    noise = base_noise("encoder", 400, 50)[::2]
    assert noise.dtype == np.float32
    assert kstest(noise.ravel(), "norm").pvalue > 1e-3
    correlation = np.corrcoef(noise.T) - np.eye(50)
    assert np.abs(correlation).max() < 5 / np.sqrt(200)


def test_base_noise_belongs_to_the_encoder_and_the_dimension() -> None:
    noise = base_noise("encoder", 4, 6)
    np.testing.assert_array_equal(noise, base_noise("encoder", 4, 6))
    for other in (base_noise("encoder2", 4, 6), base_noise("encoder", 6, 4)):
        assert np.intersect1d(noise, other).size == 0


def test_base_noise_is_pinned() -> None:
    """From another release or machine, these numbers; a cached answer depends on them."""
    pinned = [[-1.3271, 0.94801825], [1.3271, -0.94801825], [-0.4275258, 0.04424513]]
    np.testing.assert_allclose(base_noise("golden", 3, 2), pinned, rtol=1e-6)


@pytest.mark.parametrize("n_samples", [1, 2, 7, 8])
def test_base_noise_comes_in_antithetic_pairs_and_fewer_are_the_first(n_samples: int) -> None:
    noise = base_noise("encoder", n_samples, 5)
    assert noise.shape == (n_samples, 5)
    np.testing.assert_array_equal(noise[1::2], -noise[0::2][: n_samples // 2])
    np.testing.assert_array_equal(noise, base_noise("encoder", 20, 5)[:n_samples])


def test_antithetic_pairs_estimate_an_order_with_less_variance() -> None:
    """The share of draws that are nearer to one item than to another, over many encoders."""
    mean, contrast = np.full(8, 0.5, np.float32), np.linspace(-1, 1.6, 8).astype(np.float32)
    variance = np.full(8, 1.0, np.float32)

    def spread(noises: list[np.ndarray]) -> float:
        shares = [
            (sample_projected_normal(mean, variance, noise) @ contrast > 0).mean()
            for noise in noises
        ]
        return float(np.var(shares))

    rng = np.random.default_rng(3)
    paired = spread([base_noise(str(seed), 20, 8) for seed in range(500)])
    plain = spread([rng.standard_normal((20, 8)).astype(np.float32) for _ in range(500)])
    assert paired < 0.7 * plain
