"""Algebra of Gaussian embeddings with diagonal covariance, for numpy arrays and torch tensors."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr


class Array(Protocol):
    """The array operations that this module needs; NumPy and PyTorch arrays have them."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...
    def __mul__(self, other: Self | float, /) -> Self: ...
    def __pow__(self, exponent: int, /) -> Self: ...

    def sum(self, axis: int, /) -> Self:
        """Sum along an axis."""


A = TypeVar("A", bound=Array)


class DiagonalGaussian(NamedTuple, Generic[A]):
    """Embeddings z ~ N(mean, diag variance), independent of each other.

    Attributes
    ----------
    mean : (..., D) in embedding units.
    variance : (..., D) ≥ 0 in squared units, or (..., 1) if isotropic.
    """

    mean: A
    variance: A


def squared_distance_moments(delta: A, variance: A) -> tuple[A, A]:
    r"""Mean and variance of D² = ‖z_q − z_g‖² for independent Gaussian z_q, z_g.

    D² is a quadratic form in N(Δ, diag s), with s = σ²_q + σ²_g (Mathai & Provost 1992, ch. 3):

        E[D²]   = Σ_d (Δ_d² + s_d)
        Var[D²] = Σ_d (2 s_d² + 4 Δ_d² s_d)

    Parameters
    ----------
    delta : (..., D)     Δ = μ_q − μ_g, embedding units.
    variance : (..., D)  s = σ²_q + σ²_g, squared embedding units, ≥ 0.

    Returns
    -------
    mean : (...), in embedding units to the power of 2.
    variance : (...), in embedding units to the power of 4.
    """
    d2 = delta**2
    return (d2 + variance).sum(-1), (variance**2 * 2 + d2 * variance * 4).sum(-1)


def triplet_margin_moments(
    anchor: DiagonalGaussian[A], positive: DiagonalGaussian[A], negative: DiagonalGaussian[A]
) -> tuple[A, A]:
    r"""Mean and variance of τ = ‖z_a − z_p‖² − ‖z_a − z_n‖²; τ < 0 if the positive is nearer.

    Warburg et al. 2021, Eq. 2-26, regrouped so that no term of the variance is negative. The two
    distances are correlated, because both contain z_a. With p = μ_p − μ_a and n = μ_n − μ_a in each
    dimension:

        E[τ]   = Σ_d (p² + σ²_p − n² − σ²_n)
        Var[τ] = Σ_d (2 σ⁴_p + 2 σ⁴_n + 4 [σ²_p p² + σ²_n n² + σ²_a (σ²_p + σ²_n + (p − n)²)])

    Mean and variance are exact for any diagonal covariances. The distribution of τ is only
    approximately normal. The largest difference between the distribution function of τ and the
    normal distribution function is 0.08 at D = 1, 0.026 at D = 4 and 0.007 at D = 128 (medians over
    random settings).

    Parameters
    ----------
    anchor, positive, negative : (..., D), broadcast together.

    Returns
    -------
    mean : (...), in embedding units to the power of 2.
    variance : (...), in embedding units to the power of 4.
    """
    to_positive = positive.mean - anchor.mean
    to_negative = negative.mean - anchor.mean
    vp, vn = positive.variance, negative.variance
    # With this order of operations, swapping positive and negative only changes the sign of the
    # mean.
    mean = ((to_positive**2 - to_negative**2) + (vp - vn)).sum(-1)
    coupling = anchor.variance * (vp + vn + (to_positive - to_negative) ** 2)
    cross = vp * to_positive**2 + vn * to_negative**2 + coupling
    return mean, (vp**2 * 2 + vn**2 * 2 + cross * 4).sum(-1)


NumpyGaussian = DiagonalGaussian[NDArray[np.floating[Any]]]


def probability_ranks_above(
    query: NumpyGaussian, item: NumpyGaussian, rival: NumpyGaussian
) -> NDArray[np.float64]:
    """Return P(the item is nearer to the query than the rival), if τ is normal.

    Parameters
    ----------
    query, item, rival : (..., D), broadcast together.

    Returns
    -------
    (...) in [0, 1]; P(item, rival) + P(rival, item) = 1. Without variance, the result is 1 or 0, or
    ½ for equal distances.
    """
    return np.asarray(ndtr(_standardised_lead(query, item, rival)))


def log_probability_ranks_above(
    query: NumpyGaussian, item: NumpyGaussian, rival: NumpyGaussian
) -> NDArray[np.float64]:
    """Natural logarithm of `probability_ranks_above`; it does not underflow.

    Returns
    -------
    (...) ≤ 0; −inf only if there is no variance and the rival is nearer.
    """
    return np.asarray(log_ndtr(_standardised_lead(query, item, rival)))


def _standardised_lead(
    query: NumpyGaussian, item: NumpyGaussian, rival: NumpyGaussian
) -> NDArray[np.float64]:
    """−E[τ] / std τ; ±inf or 0 where the standard deviation is 0."""
    mean, variance = triplet_margin_moments(query, item, rival)
    lead = -np.asarray(mean, dtype=np.float64)
    certain = np.where(lead == 0, 0.0, np.copysign(np.inf, lead))
    std = np.sqrt(np.asarray(variance, dtype=np.float64))
    return np.divide(lead, std, out=certain, where=std > 0)
