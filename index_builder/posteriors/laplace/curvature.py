"""Types of curvature approximations, and the diagonal curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from index_builder.arrays import Array, double, namespace
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior

Structure = Literal["kronecker", "diagonal"]
"""How a curvature is stored: as two factors (see `kronecker`) or as its diagonal (Warburg et
al.)."""

Approximation = Literal["full", "positives", "fixed"]
"""How to keep a curvature non-negative, although negative pairs make the curvature indefinite
(Warburg et al. 2023, App. F.3).

`full` keeps all terms and clips the sum at zero (Eq. 98). `positives` drops the negative pairs (Eq.
99). `fixed` differentiates with respect to one image of a pair while the other is constant (Eq.
100-102, corrected)."""

Split = Literal["euclidean", "arccos"]
"""The place of the l2-normalisation in the Gauss-Newton split (Warburg et al. 2023, Eq. 80-93).

In `euclidean` the normalisation is part of the network, in `arccos` part of the loss."""


@dataclass(frozen=True, slots=True)
class Curvature:
    """Diagonal of the generalised Gauss-Newton matrix of a last layer h = W φ + b.

    Attributes
    ----------
    weight : (D, F), second derivatives with respect to the entries of W.
    bias : (D,), second derivatives with respect to b.
    """

    weight: Array
    bias: Array

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise ValueError(f"{self.weight.shape=} and {self.bias.shape=}, wanted (D, F) and (D,)")

    @classmethod
    def zeros_like(cls, weight: Array) -> Curvature:
        """Return a zero curvature for a layer with weight (D, F)."""
        xp = namespace(weight)
        return cls(xp.zeros_like(weight), xp.zeros_like(weight[:, 0]))

    def __add__(self, other: Curvature) -> Curvature:
        return Curvature(self.weight + other.weight, self.bias + other.bias)

    def __mul__(self, factor: float) -> Curvature:
        return Curvature(self.weight * factor, self.bias * factor)

    @property
    def n_parameters(self) -> int:
        """Weights and biases."""
        n_outputs, n_features = self.weight.shape
        return int(n_outputs * (n_features + 1))

    @property
    def mean(self) -> float:
        """Mean second derivative with respect to a weight or bias."""
        return float(namespace(self.weight).mean(self._entries()))

    @property
    def largest(self) -> float:
        """Largest second derivative."""
        return float(namespace(self.weight).max(self._entries()))

    @property
    def share_zero(self) -> float:
        """Share of the weights and biases with zero curvature."""
        return float(namespace(self.weight).mean(double(self._entries() == 0)))

    def prior_share(self, prior_precision: float) -> float:
        """Return the prior's share of the total precision of all weights."""
        return prior_precision / (prior_precision + self.mean)

    def log_determinant(self, prior_precision: float) -> float:
        """Return Σ log(1 + H / λ)."""
        xp = namespace(self.weight)
        return float(xp.sum(xp.log1p(self._entries() / prior_precision)))

    def n_determined(self, prior_precision: float) -> float:
        """Return Σ H / (H + λ): MacKay's γ, the number of well-determined parameters."""
        entries = self._entries()
        return float(namespace(entries).sum(entries / (entries + prior_precision)))

    def squared_norm(self, weight: Array, bias: Array) -> float:
        """Return ‖θ‖², which the log prior multiplies by the prior precision."""
        xp = namespace(weight)
        return float(xp.sum(double(weight) ** 2) + xp.sum(double(bias) ** 2))

    def posterior(self, weight: Array, bias: Array, prior_precision: float) -> LastLayerPosterior:
        """Return N(θ, 1 / (H + λ)) for each parameter (Warburg et al. 2023, Eq. 65).

        Parameters
        ----------
        weight, bias : (D, F), (D,); the mean.
        prior_precision : λ > 0.
        """
        return LastLayerPosterior(
            weight, bias, 1 / (self.weight + prior_precision), 1 / (self.bias + prior_precision)
        )

    def _entries(self) -> Array:
        """All entries in double precision."""
        xp = namespace(self.weight)
        return double(xp.concat([xp.reshape(self.weight, (-1,)), self.bias]))

    def rectified(self) -> Curvature:
        """Clip at zero, so that the diagonal is positive semi-definite.

        Warburg et al. 2023, Eq. 98 and Prop. F.1. Clip only after the sum over the data set:
        clipping each minibatch would bias the sum upwards.
        """
        xp = namespace(self.weight)
        return Curvature(xp.clip(self.weight, 0, None), xp.clip(self.bias, 0, None))
