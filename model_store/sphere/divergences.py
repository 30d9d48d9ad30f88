"""Divergences and overlaps of von Mises-Fisher distributions, in closed form.

All functions depend only on the two concentrations and on the cosine between the mean directions.
So one matrix product is enough for many pairs. The functions use the cumulant generating function K
instead of log C_D = log C_D(0) − K, to avoid cancellation. With K, the error is a few 1e-16 of
max(1, κ). With a cosine in float32, the error is about 1e-7 κ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from model_store.sphere.normaliser import (
    cumulant_generating_function,
    log_normaliser,
    mean_resultant_length,
)


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
