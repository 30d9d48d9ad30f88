"""A matrix normal posterior over the weights of a linear last layer, and its predictions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

KRONECKER_FORMAT = "kronecker-posterior/1"
_TENSORS = (
    "weight_mean",
    "bias_mean",
    "feature_scale",
    "directions",
    "direction_variance",
    "rest_variance",
    "output_factor",
)


@dataclass(frozen=True, slots=True)
class KroneckerPosterior:
    """A matrix normal distribution of the weights W̃ = (W, b) of a last layer h = W φ + b.

    The covariance of W̃ is (C Cᵀ) ⊗ T^-½ (U v Uᵀ + ρ (I - U Uᵀ)) T^-½.

    Attributes
    ----------
    weight_mean : (D, F)
    bias_mean : (D,)
    feature_scale : (F + 1,), the diagonal of T^-½.
    directions : U (F + 1, K), orthonormal columns; the last feature is that of the bias.
    direction_variance : v (K,), strictly positive.
    rest_variance : ρ (), the variance of all other directions; positive unless K = F + 1.
    output_factor : C (D, D).
    output_variance : (D,), the diagonal of C Cᵀ.
    """

    weight_mean: Tensor
    bias_mean: Tensor
    feature_scale: Tensor
    directions: Tensor
    direction_variance: Tensor
    rest_variance: Tensor
    output_factor: Tensor
    output_variance: Tensor = field(init=False)

    def __post_init__(self) -> None:
        dim, n_features = self.weight_mean.shape
        rank = self.directions.shape[-1]
        wanted = (dim,), (n_features + 1,), (n_features + 1, rank), (rank,), (), (dim, dim)
        for name, shape in zip(_TENSORS[1:], wanted, strict=True):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} is {tuple(getattr(self, name).shape)}, wanted {shape}")
        for name in _TENSORS:
            if not bool(torch.isfinite(getattr(self, name)).all()):
                raise ValueError(f"{name} must be finite")
        rest_positive = self._is_complete or bool(self.rest_variance > 0)
        if not (rest_positive and bool((self.direction_variance > 0).all())):
            raise ValueError("variances must be strictly positive")
        object.__setattr__(self, "output_variance", self.output_factor.square().sum(1))

    @property
    def _is_complete(self) -> bool:
        return self.directions.shape[0] == self.directions.shape[1]

    def feature_variance(self, features: Tensor) -> Tensor:
        """Return the factor s = φ̃ᵀ (A + λ)⁻¹ φ̃ (B,) of the variance for ``features`` (B, F).

        The projection on the eigenvectors is subtracted from φ̃ before squaring. A difference of
        two squares would be mostly rounding error.
        """
        extended = functional.pad(features, (0, 1), value=1.0) * self.feature_scale
        coordinates = extended @ self.directions
        variance = _weighted_sums(coordinates.square(), self.direction_variance)
        if self._is_complete:
            return variance
        outside = (extended - coordinates @ self.directions.T).square()
        return variance + self.rest_variance * _weighted_sums(outside, torch.ones_like(outside[0]))

    def products(self, features: Tensor) -> Tensor:
        """Return the factors φ̃ᵢᵀ (A + λ)⁻¹ φ̃ⱼ (B, B) of the covariances for ``features`` (B, F).

        The covariance of the embeddings of i and j is entry (i, j) times C Cᵀ. The diagonal equals
        `feature_variance`.
        """
        extended = functional.pad(features, (0, 1), value=1.0) * self.feature_scale
        along = extended @ self.directions
        weighted: Tensor = (along * (self.direction_variance - self.rest_variance)) @ along.T
        return weighted + self.rest_variance * (extended @ extended.T)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, in closed form.

        Matrix normal weights give z | φ ~ N(W φ + b, s C Cᵀ), with s from `feature_variance`. The
        variance is the diagonal of s C Cᵀ.

        Parameters
        ----------
        features : (B, F)

        Returns
        -------
        mean, variance : (B, D), before normalisation.
        """
        mean = torch.addmm(self.bias_mean, features, self.weight_mean.T)
        return mean, self.feature_variance(features)[:, None] * self.output_variance

    def sample(self, n_samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw last layers; gradients flow through the samples to the mean weights.

        Parameters
        ----------
        n_samples : S.
        generator : must be on the device of the posterior.

        Returns
        -------
        weights, biases : (S, D, F), (S, D)
        """
        mean = torch.cat([self.weight_mean, self.bias_mean[:, None]], 1)
        noise = torch.randn(
            n_samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device
        )
        # The square root of the columns' covariance is ρ^½ I + U (v^½ - ρ^½) Uᵀ.
        rest = self.rest_variance.sqrt()
        along = noise @ self.directions
        spread = rest * noise
        spread += (along * (self.direction_variance.sqrt() - rest)) @ self.directions.T
        layers = mean + self.output_factor @ spread * self.feature_scale
        return layers[..., :-1], layers[..., -1]

    def tempered(self, temperature: float) -> KroneckerPosterior:
        """Return the posterior with all variances multiplied by ``temperature`` > 0."""
        return replace(
            self,
            direction_variance=self.direction_variance * temperature,
            rest_variance=self.rest_variance * temperature,
        )

    def save(self, path: Path) -> None:
        """Write its tensors as safetensors."""
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        save_file(tensors, path, metadata={"format": KRONECKER_FORMAT})


_COLUMNS = 16
"""A matrix with this number of equal columns replaces the vector in a matrix-vector product."""


def _weighted_sums(values: Tensor, weights: Tensor) -> Tensor:
    """Return ``values`` (B, K) @ ``weights`` (K,), with the same rounding for any batch size.

    ONNX Runtime changes the order of summation if a batch has one image, or if a matrix is
    multiplied by a vector. In a product of two matrices, the order of summation is the same for
    every row. A matrix of equal columns therefore replaces the vector. The variance of an image
    then does not depend on its batch.
    """
    return (values @ weights[:, None].expand(-1, _COLUMNS).contiguous())[:, 0]
