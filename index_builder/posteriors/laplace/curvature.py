"""Approximations of the curvature, the targets of pairs, and the diagonal curvature.

A target y_ij is the weight of a pair of images in the contrastive loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from index_builder.arrays import Array, double, namespace
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from model_store.errors import DatasetError

TargetScaling = Literal["per_anchor", "global"]
"""The relative weights of a data set's pairs.

`per_anchor`: A is the set of anchors that have a positive. The weights of an anchor's positives sum
to 1 / |A|, and the weights of the anchor's negatives sum to -1 / |A|. The proof of Prop. F.3 of
Warburg et al. 2023 uses these weights. With these weights, `fixed` cannot be negative. `global`
(Eq. 13): every positive pair has the weight 1 / |D²pos|, and every negative pair has the weight -1
/ |D²neg|. Large classes then dominate, and `fixed` can be negative for images of small classes. The
two scalings are equal for classes of equal size. Both scalings leave out pairs of an image with
itself."""


@dataclass(frozen=True, slots=True)
class AnchorTargets:
    """Targets of all pairs (i, j), j ≠ i, of a data set: two values for each anchor i.

    Attributes
    ----------
    positive : (N,), y_ij for an image j that has the same label as i; 0 if no other image has the
        label.
    negative : (N,), -y_ij for an image j that has another label than i and is inside the margin.
    class_size : (N,), number of images with the label of i, including image i.
    n_classes : number of labels.
    """

    positive: Array
    negative: Array
    class_size: Array
    n_classes: int

    def of(self, rows: Array) -> AnchorTargets:
        """Return the targets of the anchors ``rows`` (B,) int64, with all images as partners."""
        return replace(
            self,
            positive=self.positive[rows],
            negative=self.negative[rows],
            class_size=self.class_size[rows],
        )

    def of_pairs(self, anchors: Array, is_positive: Array, is_inside: Array) -> Array:
        """Return y_ij (P,) of the pairs whose first images are ``anchors`` (P,)."""
        negative = -self.negative[anchors] * is_inside
        return namespace(negative).where(is_positive, self.positive[anchors], negative)


def anchor_targets(
    labels: Array,
    scaling: TargetScaling,
    dtype: Any,  # noqa: ANN401 - NumPy's or torch's
) -> AnchorTargets:
    """Targets of all ordered pairs of a data set.

    Warburg et al. 2023, Eq. 13 without the trivial pairs i = i, or Eq. 109 (per anchor).

    Parameters
    ----------
    labels : (N,) int64.
    scaling : see `TargetScaling`.
    dtype : type of the targets.

    Raises
    ------
    DatasetError : no label has two images, so no pair is positive.
    """
    xp = namespace(labels)
    counts = xp.unique_counts(labels).counts
    class_size = double(counts[xp.unique_inverse(labels).inverse_indices])
    n_positive, n_negative = class_size - 1, len(labels) - class_size
    is_anchor = n_positive > 0
    if not bool(xp.any(is_anchor)):
        raise DatasetError(
            f"No label has two images among {len(labels)}: there is no positive pair to learn from."
        )
    if scaling == "per_anchor":
        n_anchors = int(xp.sum(xp.astype(is_anchor, xp.int64)))
        positive = 1 / (n_anchors * xp.where(is_anchor, n_positive, 1.0))
        negative = is_anchor / (n_anchors * xp.where(n_negative > 0, n_negative, 1.0))
    else:
        positive = xp.ones_like(class_size) / xp.sum(n_positive)
        negative = xp.ones_like(class_size) / max(float(xp.sum(n_negative)), 1.0)
    positive = xp.where(is_anchor, positive, 0.0)
    negative = xp.where(n_negative > 0, negative, 0.0)
    positive, negative, class_size = (
        xp.astype(one, dtype) for one in (positive, negative, class_size)
    )
    return AnchorTargets(positive, negative, class_size, len(counts))


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
