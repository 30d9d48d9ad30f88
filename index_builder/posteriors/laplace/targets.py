"""Targets y_ij: the weight of each pair of images in the contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from index_builder.arrays import Array, double, namespace
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
