"""A matrix normal posterior over the weights of a linear last layer, and its predictions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from index_builder.arrays import Array, affine, extended, namespace, to_numpy

if TYPE_CHECKING:
    import torch

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

    weight_mean: Array
    bias_mean: Array
    feature_scale: Array
    directions: Array
    direction_variance: Array
    rest_variance: Array
    output_factor: Array
    output_variance: Array = field(init=False)

    def __post_init__(self) -> None:
        dim, n_features = self.weight_mean.shape
        rank = self.directions.shape[-1]
        wanted = (dim,), (n_features + 1,), (n_features + 1, rank), (rank,), (), (dim, dim)
        for name, shape in zip(_TENSORS[1:], wanted, strict=True):
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(f"{name} is {tuple(getattr(self, name).shape)}, wanted {shape}")
        xp = namespace(self.weight_mean)
        for name in _TENSORS:
            if not bool(xp.all(xp.isfinite(getattr(self, name)))):
                raise ValueError(f"{name} must be finite")
        rest_positive = self._is_complete or bool(self.rest_variance > 0)
        if not (rest_positive and bool(xp.all(self.direction_variance > 0))):
            raise ValueError("variances must be strictly positive")
        object.__setattr__(self, "output_variance", xp.sum(self.output_factor**2, axis=1))

    @property
    def _is_complete(self) -> bool:
        height, width = self.directions.shape
        return bool(height == width)

    def feature_variance(self, features: Array) -> Array:
        """Return the factor s = φ̃ᵀ (A + λ)⁻¹ φ̃ (B,) of the variance for ``features`` (B, F).

        The projection on the eigenvectors is subtracted from φ̃ before squaring. A difference of
        two squares would be mostly rounding error.
        """
        scaled = extended(features) * self.feature_scale
        coordinates = scaled @ self.directions
        variance = _weighted_sums(coordinates**2, self.direction_variance)
        if self._is_complete:
            return variance
        outside = (scaled - coordinates @ self.directions.T) ** 2
        ones = namespace(outside).ones_like(outside[0])
        return variance + self.rest_variance * _weighted_sums(outside, ones)

    def products(self, features: Array) -> Array:
        """Return the factors φ̃ᵢᵀ (A + λ)⁻¹ φ̃ⱼ (B, B) of the covariances for ``features`` (B, F).

        The covariance of the embeddings of i and j is entry (i, j) times C Cᵀ. The diagonal equals
        `feature_variance`.
        """
        scaled = extended(features) * self.feature_scale
        along = scaled @ self.directions
        weighted = (along * (self.direction_variance - self.rest_variance)) @ along.T
        return weighted + self.rest_variance * (scaled @ scaled.T)

    def predict(self, features: Array) -> tuple[Array, Array]:
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
        mean = affine(features, self.weight_mean, self.bias_mean)
        return mean, self.feature_variance(features)[:, None] * self.output_variance

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
        arrays = {name: np.asarray(to_numpy(getattr(self, name)), order="C") for name in _TENSORS}
        save_file(arrays, path, metadata={"format": KRONECKER_FORMAT})

    @classmethod
    def load(cls, path: Path) -> KroneckerPosterior:
        """Read what `save` wrote, as arrays of NumPy.

        Raises
        ------
        ValueError : the file holds another kind of posterior.
        """
        with safe_open(path, framework="np") as file:
            kind = dict(file.metadata() or {}).get("format", "")
            if kind != KRONECKER_FORMAT:
                raise ValueError(f"{path.name} is of format {kind!r}, wanted {KRONECKER_FORMAT!r}")
            return cls(**{name: file.get_tensor(name) for name in _TENSORS})


COLUMNS = 16
"""A matrix with this number of equal columns replaces the vector in a matrix-vector product."""


def _weighted_sums(values: Array, weights: Array) -> Array:
    """Return ``values`` (B, K) @ ``weights`` (K,), with the same rounding for any batch size.

    ONNX Runtime changes the order of summation if a batch has one image, or if a matrix is
    multiplied by a vector. In a product of two matrices, the order of summation is the same for
    every row. A matrix of equal columns therefore replaces the vector. The variance of an image
    then does not depend on its batch.
    """
    columns = namespace(weights).tile(weights[:, None], (1, COLUMNS))
    return (values @ columns)[:, 0]
