"""The von Mises-Fisher distribution for losses: `model_store.sphere` with gradients.

The values come from the core's float64 code, whatever the type and device of the concentrations,
because the expansions behind them cancel too much for float32. A concentration on a GPU is copied
to the CPU and back; there is one an image, not D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from model_store import sphere


def log_normaliser(concentration: Tensor, dim: int) -> Tensor:
    """Return log C_D(κ), twice differentiable: its gradient is −A_D(κ).

    Parameters
    ----------
    concentration : (...) κ ≥ 0, floating point.
    dim : D ≥ 2, of the space that the sphere lies in.

    Returns
    -------
    (...) in the type and on the device of ``concentration``.

    Raises
    ------
    ValueError : a concentration is negative or not finite, or ``dim`` below 2.
    """
    value: Tensor = _LogNormaliser.apply(concentration, dim)
    return value


def mean_resultant_length(concentration: Tensor, dim: int) -> Tensor:
    """Return A_D(κ), once differentiable: its gradient is A_D'(κ) = 1 − A² − (D − 1) A / κ.

    Parameters, returns and errors as `log_normaliser`.
    """
    value: Tensor = _MeanResultantLength.apply(concentration, dim)
    return value


def kl_divergence_to_uniform(concentration: Tensor, dim: int) -> Tensor:
    """Return KL(p ‖ uniform) = κ A(κ) + log C(κ) − log C(0), in nats.

    Parameters, returns and errors as `log_normaliser`; gradient κ A_D'(κ).
    """
    value: Tensor = _KLDivergenceToUniform.apply(concentration, dim)
    return value


def _on_the_core(
    function: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    concentration: Tensor,
    dim: int,
) -> Tensor:
    """Evaluate a function of the core, and bring the result back to type and device."""
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
