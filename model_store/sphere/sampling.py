"""Random draws from the von Mises-Fisher distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from model_store.sphere.vectors import FloatT, unit_direction


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
