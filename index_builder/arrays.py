"""Functions for arrays of NumPy and for tensors of torch, beside the array API standard.

The mathematics of posteriors is written once. A build that trains nothing gives it arrays of NumPy
and never imports torch. Training gives it tensors, through which gradients flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

Array = Any
"""An array of NumPy, or a tensor of torch."""

_NUMPY = (np.ndarray, np.generic)
"""An array without axes becomes a scalar of NumPy in arithmetic."""

_SHORTEST = 1e-12

FeatureBlocks = Callable[[], Iterable[Array]]
"""Function that starts a pass over the data: it yields blocks (n, F) of features, in row order."""


def namespace(array: Array) -> Any:  # noqa: ANN401 - a module
    """Return the functions of the array API standard for ``array``, from NumPy or for torch."""
    return np if isinstance(array, _NUMPY) else array_namespace(array)


def to_numpy(array: Array) -> NDArray[Any]:
    """Return ``array`` as an array of NumPy, without gradients; on a CPU it shares the memory."""
    return np.asarray(array if isinstance(array, _NUMPY) else array.detach().cpu())


def constant(array: Array) -> Array:
    """Return ``array`` without gradients."""
    return array if isinstance(array, _NUMPY) else array.detach()


def double(array: Array) -> Array:
    """Return ``array`` in float64."""
    xp = namespace(array)
    return xp.astype(array, xp.float64, copy=False)


def beside(array: Array, other: Array) -> Array:
    """Return ``array`` on the device of ``other``."""
    return array if isinstance(array, _NUMPY) else array.to(other.device)


def like(array: Array, other: Array) -> Array:
    """Return ``array`` in the number type of ``other``."""
    return namespace(other).astype(array, other.dtype, copy=False)


def norms(rows: Array) -> Array:
    """Return the lengths (n, 1) of ``rows`` (n, D)."""
    return namespace(rows).linalg.vector_norm(rows, axis=1, keepdims=True)


def unit(rows: Array) -> Array:
    """Return ``rows`` (n, D) at length 1; a row of zeros stays zero."""
    return rows / namespace(rows).clip(norms(rows), _SHORTEST, None)


def extended(features: Array) -> Array:
    """Return φ̃ = (φ, 1) (n, F + 1) of ``features`` φ (n, F)."""
    xp = namespace(features)
    return xp.concat([features, xp.ones_like(features[:, :1])], axis=1)


def affine(features: Array, weight: Array, bias: Array) -> Array:
    """Return W φ + b (n, D) of ``features`` φ (n, F).

    The tensor's own method becomes one node of an exported graph.
    """
    if isinstance(features, _NUMPY):
        return features @ weight.T + bias
    return bias.addmm(features, weight.T)
