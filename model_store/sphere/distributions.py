"""The von Mises-Fisher distribution, and the projected normal distribution.

The functions of von Mises-Fisher distributions depend only on the two concentrations and on the
cosine between the mean directions. So one matrix product is enough for many pairs. The functions
use the cumulant generating function K instead of log C_D = log C_D(0) − K, to avoid cancellation.
With K, the error is a few 1e-16 of max(1, κ). With a cosine in float32, the error is about 1e-7 κ.

A projected normal distribution is the distribution of a Gaussian embedding that is normalised to
length 1.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from model_store.sphere.normaliser import (
    cumulant_generating_function,
    log_normaliser,
    mean_resultant_length,
    mean_resultant_length_derivative,
)

FloatT = TypeVar("FloatT", bound=np.floating[Any])
"""The data type of the numbers; input and output have the same type."""


def unit_direction(vectors: NDArray[FloatT]) -> NDArray[FloatT]:
    """Scale vectors to length 1; every finite non-zero vector is accurate up to rounding.

    Parameters
    ----------
    vectors : (..., D) of any length. Each vector is first divided by its largest absolute entry, so
        that squares do not overflow or underflow in float32.

    Returns
    -------
    (..., D) unit, in the type of ``vectors``.

    Raises
    ------
    ValueError : a vector is zero or not finite, so it has no direction.
    """
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    usable = (largest > 0) & np.isfinite(largest)  # NaN fails the first
    if not usable.all():
        first = tuple(np.argwhere(~usable[..., 0])[0].tolist())
        raise ValueError(
            f"{int((~usable).sum())} of {usable.size} vectors are zero or not finite and have no "
            f"direction (first at {first}); the encoder that made them is at fault"
        )
    scaled = vectors / largest
    unit: NDArray[FloatT] = scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)
    return unit


def kl_divergence(
    concentration: ArrayLike, other_concentration: ArrayLike, cosine: ArrayLike, dim: int
) -> NDArray[np.float64]:
    """KL(p ‖ q) = log C(κ_p) − log C(κ_q) + A(κ_p) (κ_p − κ_q cos), in nats.

    This is Eq. 39 of Kirchhof et al. 2022 with a correction: the mean of p is A(κ_p) μ_p, not μ_p.

    Parameters
    ----------
    concentration : (...) κ_p ≥ 0.
    other_concentration : (...) κ_q ≥ 0.
    cosine : (...) cosine between the two mean directions; values beyond ±1 are clipped.
    dim : D ≥ 2.

    Returns
    -------
    (...) ≥ 0.

    Raises
    ------
    ValueError : a concentration is negative or not finite, or ``dim`` below 2.
    """
    kappa = np.asarray(concentration, dtype=np.float64)
    other_kappa = np.asarray(other_concentration, dtype=np.float64)
    pull = mean_resultant_length(kappa, dim) * (kappa - other_kappa * _cut(cosine))
    gain = cumulant_generating_function(other_kappa, dim) - cumulant_generating_function(kappa, dim)
    return np.asarray(np.maximum(gain + pull, 0.0))


def kl_divergence_to_uniform(concentration: ArrayLike, dim: int) -> NDArray[np.float64]:
    """KL(p ‖ uniform) = κ A(κ) + log C(κ) − log C(0), in nats.

    Warburg et al. 2021, Listing 2, use κ − D log 2 instead, which is negative at κ = 0.

    Parameters, returns and errors: see `kl_divergence`. Near κ = 0, the result is κ² / 2D, with
    full relative accuracy.
    """
    kappa = np.asarray(concentration, dtype=np.float64)
    pull = kappa * mean_resultant_length(kappa, dim)
    return np.asarray(np.maximum(pull - cumulant_generating_function(kappa, dim), 0.0))


def log_expected_likelihood(
    concentration: ArrayLike, other_concentration: ArrayLike, cosine: ArrayLike, dim: int
) -> NDArray[np.float64]:
    """Return log ∫ p q = log C(κ_p) + log C(κ_q) − log C(‖κ_p μ_p + κ_q μ_q‖).

    This is the expected likelihood kernel. Kirchhof et al. 2022, Eq. 25, use the negative of this
    value as a distance. Densities are per area of the sphere, so the result can be positive or
    negative.

    Parameters, errors as `kl_divergence`.
    """
    return np.asarray(
        log_normaliser(concentration, dim)
        - cumulant_generating_function(other_concentration, dim)
        + cumulant_generating_function(_resultant(concentration, other_concentration, cosine), dim)
    )


def log_bhattacharyya_coefficient(
    concentration: ArrayLike, other_concentration: ArrayLike, cosine: ArrayLike, dim: int
) -> NDArray[np.float64]:
    """Return log ∫ √(p q) = ½ log C(κ_p) + ½ log C(κ_q) − log C(½ ‖κ_p μ_p + κ_q μ_q‖).

    Kirchhof et al. 2022, Eq. 24, use the negative of this value as a distance.

    Parameters, errors as `kl_divergence`.

    Returns
    -------
    (...) ≤ 0; 0 for equal distributions.
    """
    half = _resultant(concentration, other_concentration, cosine) / 2
    mean = cumulant_generating_function(concentration, dim) / 2 + (
        cumulant_generating_function(other_concentration, dim) / 2
    )
    return np.asarray(np.minimum(cumulant_generating_function(half, dim) - mean, 0.0))


def _resultant(
    concentration: ArrayLike, other_concentration: ArrayLike, cosine: ArrayLike
) -> NDArray[np.float64]:
    """Return ‖κ_p μ_p + κ_q μ_q‖ without cancellation, as √((κ_p − κ_q)² + 2 κ_p κ_q (1 + cos))."""
    kappa = np.asarray(concentration, dtype=np.float64)
    other_kappa = np.asarray(other_concentration, dtype=np.float64)
    squared = (kappa - other_kappa) ** 2 + 2 * kappa * other_kappa * (1 + _cut(cosine))
    return np.asarray(np.sqrt(squared))


def _cut(cosine: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0))


MAX_CONCENTRATION = 1e10
"""Maximum concentration, used for a resultant length of 1 (all vectors are equal). This
concentration is a spread of 1e-5 radians along each axis, which is smaller than the differences
between images. The value is finite, so that it can be stored, averaged and sent as JSON.
"""

_ROUNDING = 1e-6
"""Rounding tolerance: the mean of unit vectors in float32 may be longer than 1 by this amount."""

_MAX_NEWTON_STEPS = 10


def approximate_concentration(resultant_length: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Return κ ≈ R (D − R²) / (1 − R²), in closed form.

    The formula is from Banerjee et al. 2005, in the form of Warburg et al. 2023, Eq. 33. D is the
    dimension of the space that contains the sphere. The result is too large by up to 5% at D = 3,
    0.13% at D = 128 and 0.03% at D = 512.

    Parameters
    ----------
    resultant_length : (...) R in [0, 1]; values up to 1 + 10⁻⁶ count as 1, because of rounding.
    dim : D ≥ 2.

    Returns
    -------
    (...) in [0, `MAX_CONCENTRATION`].

    Raises
    ------
    ValueError : a resultant length is out of range or NaN.
    """
    length = np.asarray(resultant_length, dtype=np.float64)
    if not np.all((length >= 0) & (length <= 1 + _ROUNDING)):  # NaN fails both
        raise ValueError(
            f"resultant lengths must lie in [0, 1], got {length.min()} to {length.max()}"
        )
    length = np.minimum(length, 1.0)
    shortfall = np.maximum((1 - length) * (1 + length), 1 / MAX_CONCENTRATION**2)
    return np.asarray(np.minimum(length * (dim - length**2) / shortfall, MAX_CONCENTRATION))


def concentration_of(resultant_length: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Return the κ with the mean resultant length R: the inverse of A_D.

    Newton's method starts from `approximate_concentration`, as in Sra 2012, and runs until
    convergence. The relative error is 2e-10 up to κ = 1e5, and 1e-12 up to κ = 1e3. The error comes
    from the rounding of R.

    Parameters, returns and errors: see `approximate_concentration`.
    """
    kappa = approximate_concentration(resultant_length, dim)
    length = np.minimum(np.asarray(resultant_length, dtype=np.float64), 1.0)
    shortfall = np.maximum((1 - length) * (1 + length), 1 / MAX_CONCENTRATION**2)
    # The root is within these bounds (Tanabe et al. 2007). Steps are clipped to them, because of
    # rounding errors.
    lowest = np.minimum(length * (dim - 2) / shortfall, MAX_CONCENTRATION)
    highest = np.minimum(length * dim / shortfall, MAX_CONCENTRATION)
    for _ in range(_MAX_NEWTON_STEPS):
        excess = mean_resultant_length(kappa, dim) - length
        step = excess / mean_resultant_length_derivative(kappa, dim)
        kappa = np.clip(kappa - step, lowest, highest)
        # Convergence is quadratic: after a step of 1e-7, the error is about 1e-14.
        if np.all(np.abs(step) <= 1e-7 * kappa):
            break
    return np.asarray(kappa)


def debiased_resultant_length(resultant_length: ArrayLike, n_samples: int) -> NDArray[np.float64]:
    """Return √max(0, (N R² − 1) / (N − 1)), the resultant length without its bias.

    The mean of N draws is too long: E R² = 1/N + (1 − 1/N) A². Without the lower limit 0, the
    square of the result would be an unbiased estimate of A². Without the correction, 100 draws from
    the uniform distribution at D = 512 give κ = 52.

    Parameters
    ----------
    resultant_length : (...) R in [0, 1], of the mean of N unit vectors.
    n_samples : N ≥ 2.

    Raises
    ------
    ValueError : ``n_samples`` below 2.
    """
    if n_samples < 2:
        raise ValueError(f"{n_samples=}; a spread needs 2 samples or more")
    squared = np.square(np.asarray(resultant_length, dtype=np.float64))
    return np.sqrt(np.maximum(0.0, (n_samples * squared - 1) / (n_samples - 1)))


def fit_von_mises_fisher(
    samples: NDArray[FloatT],
) -> tuple[NDArray[FloatT], NDArray[np.float64]]:
    """Estimate direction and concentration from N unit vectors, corrected for the bias at small N.

    Parameters
    ----------
    samples : (..., N, D) unit vectors, N ≥ 2.

    Returns
    -------
    direction : (..., D) unit vector, in the type of ``samples``.
    concentration : (...) κ = `concentration_of` of the `debiased_resultant_length`.

    Raises
    ------
    ValueError : N below 2, or a mean of length zero.
    """
    n_samples, dim = samples.shape[-2:]
    mean = samples.mean(axis=-2, dtype=np.float64)
    length = debiased_resultant_length(np.linalg.norm(mean, axis=-1), n_samples)
    return unit_direction(mean).astype(samples.dtype), concentration_of(length, dim)


def sample_von_mises_fisher(
    direction: NDArray[FloatT],
    concentration: ArrayLike,
    n_samples: int,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw S unit vectors from each distribution.

    The method is from Wood 1994: the cosine with the mean direction is drawn by rejection, and the
    orthogonal part is drawn from the uniform distribution. A draw costs O(D). SciPy's sampler
    rotates by a D × D matrix, which takes 50 s for 2000 draws at D = 4096.

    Parameters
    ----------
    direction : (..., D) mean directions of any non-zero length.
    concentration : (...) or a shape that broadcasts to it; κ ≥ 0. κ = 0 is the uniform
        distribution.
    n_samples : S.
    generator : source of randomness.

    Returns
    -------
    (..., S, D) unit.

    Raises
    ------
    ValueError : a direction is zero or not finite, or a concentration is negative or not finite.
    """
    mean = unit_direction(direction.astype(np.float64))[..., None, :]
    *batch, dim = direction.shape
    kappa = np.broadcast_to(np.asarray(concentration, dtype=np.float64), batch)
    if not np.all((kappa >= 0) & np.isfinite(kappa)):
        raise ValueError("concentrations must be finite and ≥ 0")
    kappa = np.broadcast_to(kappa[..., None], (*batch, n_samples))
    shortfall = _sample_cosine_shortfall(kappa.ravel(), dim, generator)
    shortfall = shortfall.reshape(*batch, n_samples, 1)
    noise = generator.standard_normal((*batch, n_samples, dim))
    tangent = unit_direction(noise - (noise * mean).sum(-1, keepdims=True) * mean)
    drawn = (1 - shortfall) * mean + np.sqrt(shortfall * (2 - shortfall)) * tangent
    return unit_direction(drawn)


def _sample_cosine_shortfall(
    kappa: NDArray[np.float64], dim: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Draw 1 − μᵀx for each κ (N,), by Wood's rejection from a transformed beta distribution.

    Wood draws w = μᵀx. This function computes 1 − w directly, to lose no digits for large κ.
    """
    drawn = np.empty_like(kappa)
    waiting = np.arange(len(kappa))
    while len(waiting):
        k = kappa[waiting]
        b = (dim - 1) / (2 * k + np.hypot(2 * k, dim - 1))
        beta = generator.beta((dim - 1) / 2, (dim - 1) / 2, size=len(waiting))
        shortfall = 2 * b * beta / (1 - (1 - b) * beta)
        peak = 2 * b / (1 + b)
        log_density_ratio = k * (peak - shortfall) + (dim - 1) * np.log(
            (peak + shortfall - peak * shortfall) / (peak * (2 - peak))
        )
        accepted = log_density_ratio >= -generator.standard_exponential(len(waiting))
        drawn[waiting[accepted]] = shortfall[accepted]
        waiting = waiting[~accepted]
    return drawn


def resultant_length_of_gaussian(
    mean: NDArray[np.floating[Any]], variance: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Approximate the length of E[z / ‖z‖] for z ~ N(mean, diag variance), in closed form.

    R ≈ ‖m‖ / √(‖m‖² + Σ_d v_d). Warburg et al. 2023 average 100 sampled embeddings instead; this
    formula needs no samples. The formula includes the variance along the mean, which normalisation
    removes. So 1 − R is too large by up to 1 part in D. This error is 1% at D = 128, but a factor
    of 2 at D = 2.

    Parameters
    ----------
    mean : (..., D) non-zero means.
    variance : (..., D) ≥ 0, in squared units of ``mean``.

    Returns
    -------
    (...) in (0, 1]; 1 for a variance of zero.

    Raises
    ------
    ValueError : a mean is zero or not finite.
    """
    # Mean and variance are scaled by the same factor, so that squares do not overflow or underflow.
    scale = np.linalg.norm(mean.astype(np.float64), axis=-1)
    if not np.all((scale > 0) & np.isfinite(scale)):
        unit_direction(mean)  # raises the error for a mean without a direction
    spread = np.sqrt(variance.sum(axis=-1, dtype=np.float64)) / scale
    return np.asarray(1 / np.hypot(1, spread))


def spherical_variance(
    mean: NDArray[np.floating[Any]], variance: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return the spherical variance 1 − R, with R from `resultant_length_of_gaussian`.

    Returns
    -------
    (...), in [0, 1]: 0 if all draws have one direction, 1 for a uniform distribution.
    """
    return 1 - resultant_length_of_gaussian(mean, variance)


def direction_and_concentration(
    mean: NDArray[FloatT], variance: NDArray[np.floating[Any]]
) -> tuple[NDArray[FloatT], NDArray[np.float64]]:
    """Return the von Mises-Fisher distribution that approximates a Gaussian embedding.

    Parameters
    ----------
    mean, variance : (..., D), see `resultant_length_of_gaussian`.

    Returns
    -------
    direction : (..., D) unit, in the type of ``mean``.
    concentration : (...) κ with the same mean resultant length; `MAX_CONCENTRATION` if the variance
        is zero.

    Raises
    ------
    ValueError : a mean is zero or not finite.
    """
    direction = unit_direction(mean)
    length = resultant_length_of_gaussian(mean, variance)
    return direction, concentration_of(length, mean.shape[-1])


def sample_projected_normal(
    mean: NDArray[FloatT], variance: NDArray[FloatT], noise: NDArray[FloatT]
) -> NDArray[FloatT]:
    """Convert standard normal noise to draws of the normalised embedding.

    Parameters
    ----------
    mean, variance : (..., D).
    noise : (S, D) standard normal, shared by the whole batch.

    Returns
    -------
    (..., S, D) unit vectors, in the data type of the inputs.

    Raises
    ------
    ValueError : a draw is not finite, or is zero because mean and variance are zero.
    """
    return unit_direction(mean[..., None, :] + np.sqrt(variance)[..., None, :] * noise)


def base_noise(fingerprint: str, n_samples: int, dim: int) -> NDArray[np.float32]:
    """Return the fixed standard normal noise of an encoder; it is equal on every machine.

    The random bits are SHAKE-256 of the fingerprint and D, so they do not depend on the version of
    a library. The inverse cumulative distribution function converts each group of 64 bits to a
    number with the standard normal distribution. Rounding to float32 removes differences between
    mathematics libraries. The draws are antithetic pairs: row 2i + 1 is minus row 2i. So if S is
    even, the mean of the draws before normalisation is exact. If a function of the noise is
    monotone, its estimate has less variance with these pairs than with independent draws. An
    example is the estimate of P(one item is nearer than another item). An estimate of a spread has
    the same variance as with S / 2 independent draws. The first rows of a sample can be used as a
    smaller sample.

    Parameters
    ----------
    fingerprint : fingerprint of the encoder.
    n_samples : S.
    dim : D.

    Returns
    -------
    (S, D) float32.
    """
    from scipy.special import ndtri  # noqa: PLC0415 - slow, and a process that encodes draws none

    n_pairs = (n_samples + 1) // 2
    key = f"projected normal, D={dim}, encoder {fingerprint}".encode()
    stream = hashlib.shake_256(key).digest(8 * n_pairs * dim)
    # The upper 52 bits plus half a step are strictly inside (0, 1), so each normal number is
    # finite.
    uniform = ((np.frombuffer(stream, "<u8") >> 12) + 0.5) * 2.0**-52
    half = ndtri(uniform).astype(np.float32).reshape(n_pairs, dim)
    return np.stack([half, -half], axis=1).reshape(2 * n_pairs, dim)[:n_samples]
