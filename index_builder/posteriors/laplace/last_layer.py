"""A diagonal Gaussian posterior over the weights of a linear last layer, and its predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from index_builder.arrays import Array, affine, namespace, to_numpy

if TYPE_CHECKING:
    import torch

LAST_LAYER_FORMAT = "last-layer-posterior/1"
_TENSORS = ("weight_mean", "bias_mean", "weight_variance", "bias_variance")


@dataclass(frozen=True, slots=True)
class LastLayerPosterior:
    """Independent Gaussians over the entries of W and b of a last layer h = W φ + b.

    Attributes
    ----------
    weight_mean : (D, F)
    bias_mean : (D,)
    weight_variance : (D, F), strictly positive.
    bias_variance : (D,), strictly positive.
    """

    weight_mean: Array
    bias_mean: Array
    weight_variance: Array
    bias_variance: Array

    def __post_init__(self) -> None:
        shape = self.weight_mean.shape
        if len(shape) != 2 or self.weight_variance.shape != shape:
            raise ValueError(f"{shape=} and {self.weight_variance.shape=}, both must be (D, F)")
        if self.bias_mean.shape != shape[:1] or self.bias_variance.shape != shape[:1]:
            raise ValueError(
                f"{self.bias_mean.shape=} and {self.bias_variance.shape=}, wanted ({shape[0]},)"
            )
        xp = namespace(self.weight_mean)
        for name in _TENSORS:
            if not bool(xp.all(xp.isfinite(getattr(self, name)))):
                raise ValueError(f"{name} must be finite")
        if not bool(xp.all(self.weight_variance > 0) and xp.all(self.bias_variance > 0)):
            raise ValueError("variances must be strictly positive")

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Mean and variance of the embedding, in closed form.

        Gaussian weights give a Gaussian embedding: mean = W φ + b and variance = (φ∘φ) S_Wᵀ + S_b,
        with S the variances of the weights. Warburg et al. 2023 (App. G.3) sample 100 layers; the
        closed form needs no samples.

        Parameters
        ----------
        features : (B, F)

        Returns
        -------
        mean, variance : (B, D), before normalisation.
        """
        mean = affine(features, self.weight_mean, self.bias_mean)
        return mean, affine(features**2, self.weight_variance, self.bias_variance)

    def sample(self, n_samples: int, generator: torch.Generator) -> tuple[Array, Array]:
        """Draw last layers of tensors; gradients flow through the samples to the mean weights.

        Parameters
        ----------
        n_samples : S.
        generator : must be on the device of the posterior.

        Returns
        -------
        weights, biases : (S, D, F), (S, D)
        """
        import torch  # noqa: PLC0415 - only training samples layers

        draws = []
        for mean, variance in (
            (self.weight_mean, self.weight_variance),
            (self.bias_mean, self.bias_variance),
        ):
            noise = torch.randn(
                n_samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device
            )
            draws.append(mean + variance.sqrt() * noise)
        return draws[0], draws[1]

    def tempered(self, temperature: float) -> LastLayerPosterior:
        """Return the posterior with all variances multiplied by ``temperature`` > 0."""
        return replace(
            self,
            weight_variance=self.weight_variance * temperature,
            bias_variance=self.bias_variance * temperature,
        )

    def save(self, path: Path) -> None:
        """Write the four tensors as safetensors."""
        arrays = {name: np.asarray(to_numpy(getattr(self, name)), order="C") for name in _TENSORS}
        save_file(arrays, path, metadata={"format": LAST_LAYER_FORMAT})
