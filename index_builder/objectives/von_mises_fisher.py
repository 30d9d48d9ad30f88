"""The von Mises-Fisher distribution for losses: `model_store.sphere` with gradients.

`model_store.sphere` computes all values in float64 on the CPU, because its expansions lose too many
digits in float32. Concentrations on a GPU are copied to the CPU and back; an image has only one
concentration, so the copy is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from model_store import sphere

_N_STEPS = 513
_REACH = 10.0
"""The table of the angle's distribution function has `_N_STEPS` points. The table covers `_REACH`
standard deviations on each side of the mode."""

_SQUARED_FLOOR = 1e-12
"""Minimum of a squared length. The sum of two opposite vectors has length zero, where the square
root has no derivative."""


def log_normaliser(concentration: Tensor, dim: int) -> Tensor:
    """Return log C_D(κ), twice differentiable: its gradient is −A_D(κ).

    Parameters
    ----------
    concentration : (...) κ ≥ 0, floating point.
    dim : D ≥ 2, dimension of the space around the sphere.

    Returns
    -------
    (...), with the type and the device of ``concentration``.

    Raises
    ------
    ValueError : a concentration is negative or not finite, or ``dim`` is below 2.
    """
    value: Tensor = _LogNormaliser.apply(concentration, dim)
    return value


def mean_resultant_length(concentration: Tensor, dim: int) -> Tensor:
    """Return A_D(κ), once differentiable: its gradient is A_D'(κ) = 1 − A² − (D − 1) A / κ.

    Parameters, result and errors are as in `log_normaliser`.
    """
    value: Tensor = _MeanResultantLength.apply(concentration, dim)
    return value


def kl_divergence_to_uniform(concentration: Tensor, dim: int) -> Tensor:
    """Return KL(p ‖ uniform) = κ A(κ) + log C(κ) − log C(0), in nats.

    Parameters, result and errors are as in `log_normaliser`; the gradient is κ A_D'(κ).
    """
    value: Tensor = _KLDivergenceToUniform.apply(concentration, dim)
    return value


def kl_divergence(
    concentration: Tensor, other_concentration: Tensor, cosine: Tensor, dim: int
) -> Tensor:
    """Return KL(p ‖ q) = log C(κ_p) − log C(κ_q) + A(κ_p) (κ_p − κ_q cos), in nats.

    Kirchhof et al. 2022, Eq. 39, corrected: see `model_store.sphere.kl_divergence`.

    Parameters
    ----------
    concentration, other_concentration, cosine : (...), broadcast against each other.
    dim : D ≥ 2.
    """
    pull = concentration - other_concentration * cosine
    return (
        log_normaliser(concentration, dim)
        - log_normaliser(other_concentration, dim)
        + mean_resultant_length(concentration, dim) * pull
    )


def log_expected_likelihood(
    concentration: Tensor, other_concentration: Tensor, cosine: Tensor, dim: int
) -> Tensor:
    """Return log ∫ p q = log C(κ_p) + log C(κ_q) − log C(‖κ_p μ_p + κ_q μ_q‖).

    Kirchhof et al. 2022, Eq. 25. Parameters as `kl_divergence`.
    """
    resultant = _resultant(concentration, other_concentration, cosine)
    return (
        log_normaliser(concentration, dim)
        + log_normaliser(other_concentration, dim)
        - log_normaliser(resultant, dim)
    )


def log_bhattacharyya_coefficient(
    concentration: Tensor, other_concentration: Tensor, cosine: Tensor, dim: int
) -> Tensor:
    """Return log ∫ √(p q) = ½ log C(κ_p) + ½ log C(κ_q) − log C(½ ‖κ_p μ_p + κ_q μ_q‖).

    Kirchhof et al. 2022, Eq. 24. Parameters as `kl_divergence`.
    """
    half = _resultant(concentration, other_concentration, cosine) / 2
    mean = log_normaliser(concentration, dim) + log_normaliser(other_concentration, dim)
    return mean / 2 - log_normaliser(half, dim)


def sample_von_mises_fisher(
    direction: Tensor, concentration: Tensor, n_samples: int, generator: torch.Generator
) -> Tensor:
    """Draw S unit vectors from each distribution, with gradients in direction and concentration.

    The angle θ to the mean direction has the density sin^{D−2} θ exp(κ cos θ). The distribution
    function of θ is tabulated around the mode of θ. To draw θ, this function is inverted. The
    derivative of θ with respect to κ is then the derivative of a quantile. Rejection sampling, as
    in Wood 1994 or Davidson et al. 2018, has no unbiased derivative. The component orthogonal to
    the direction is uniform.

    Parameters
    ----------
    direction : (B, D) unit, D ≥ 2.
    concentration : (B,) κ > 0.
    n_samples : S.
    generator : must be on the CPU.

    Returns
    -------
    (S, B, D) unit, with the type of ``direction``.
    """
    size = (n_samples, *direction.shape)
    noise = torch.randn(size, generator=generator, dtype=torch.float64).to(direction)
    level = torch.rand(size[:-1], generator=generator, dtype=torch.float64).to(direction.device)
    angle = _angle_at(level.T, concentration.double(), direction.shape[-1]).T
    tangent = noise - (noise * direction).sum(-1, keepdim=True) * direction
    tangent = torch.nn.functional.normalize(tangent, dim=-1)
    angle = angle.to(direction)[..., None]
    return angle.cos() * direction + angle.sin() * tangent


def _angle_at(level: Tensor, concentration: Tensor, dim: int) -> Tensor:
    """Quantiles (B, S) of the angle for levels in [0, 1).

    The mode solves (D − 2) cos θ = κ sin² θ. The table spans ten standard deviations on each side
    of the mode; the standard deviation comes from a normal approximation.
    """
    kappa, order = concentration[:, None], dim - 2
    fixed = kappa.detach()
    mode = (2 * fixed / (order + torch.hypot(2 * fixed, torch.full_like(fixed, order)))).acos()
    sharpness = order / mode.sin().square().clamp_min(1e-12) + fixed * mode.cos()
    reach = _REACH / sharpness.clamp_min(1e-12).sqrt()
    first, last = (mode - reach).clamp_min(0), (mode + reach).clamp_max(math.pi)
    steps = torch.linspace(0, 1, _N_STEPS, dtype=torch.float64, device=kappa.device)
    angles = first + (last - first) * steps
    log_density = order * angles.sin().clamp_min(1e-300).log() + kappa * (angles.cos() - mode.cos())
    density = (log_density - log_density.detach().amax(1, keepdim=True)).exp()
    area = (density[:, 1:] + density[:, :-1]) / 2
    total = torch.nn.functional.pad(area.cumsum(1), (1, 0))
    total = total / total[:, -1:]
    upper = torch.searchsorted(total.detach(), level.contiguous(), right=True)
    upper = upper.clamp(1, _N_STEPS - 1)
    below, above = total.gather(1, upper - 1), total.gather(1, upper)
    share = (level - below) / (above - below).clamp_min(1e-300)
    low, high = angles.gather(1, upper - 1), angles.gather(1, upper)
    return low + share * (high - low)


def _resultant(concentration: Tensor, other_concentration: Tensor, cosine: Tensor) -> Tensor:
    """Return ‖κ_p μ_p + κ_q μ_q‖ as √((κ_p − κ_q)² + 2 κ_p κ_q (1 + cos)), without cancellation."""
    difference = (concentration - other_concentration).square()
    squared = difference + 2 * concentration * other_concentration * (1 + cosine)
    return squared.clamp_min(_SQUARED_FLOOR).sqrt()


def _on_the_core(
    function: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    concentration: Tensor,
    dim: int,
) -> Tensor:
    """Evaluate a function of `model_store.sphere`; the result has the input's type and device."""
    kappa = concentration.detach().to("cpu", torch.float64).numpy()
    return torch.from_numpy(np.asarray(function(kappa, dim))).to(concentration)


class _LogNormaliser(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, dim: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(concentration)
        ctx.dim = dim
        return _on_the_core(sphere.log_normaliser, concentration, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (concentration,) = ctx.saved_tensors
        return -gradients[0] * mean_resultant_length(concentration, ctx.dim), None


class _MeanResultantLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, dim: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(concentration)
        ctx.dim = dim
        return _on_the_core(sphere.mean_resultant_length, concentration, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (concentration,) = ctx.saved_tensors
        slope = _on_the_core(sphere.mean_resultant_length_derivative, concentration, ctx.dim)
        return gradients[0] * slope, None


class _KLDivergenceToUniform(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, dim: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(concentration)
        ctx.dim = dim
        return _on_the_core(sphere.kl_divergence_to_uniform, concentration, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (concentration,) = ctx.saved_tensors
        slope = _on_the_core(sphere.mean_resultant_length_derivative, concentration, ctx.dim)
        return gradients[0] * concentration * slope, None
