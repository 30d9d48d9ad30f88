"""Targets y_ij: the weight of each pair of images in the contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

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

    positive: Tensor
    negative: Tensor
    class_size: Tensor
    n_classes: int

    def of(self, rows: Tensor) -> AnchorTargets:
        """Return the targets of the anchors ``rows`` (B,) int64, with all images as partners."""
        return replace(
            self,
            positive=self.positive[rows],
            negative=self.negative[rows],
            class_size=self.class_size[rows],
        )

    def of_pairs(self, anchors: Tensor, is_positive: Tensor, is_inside: Tensor) -> Tensor:
        """Return y_ij (P,) of the pairs whose first images are ``anchors`` (P,)."""
        return torch.where(is_positive, self.positive[anchors], -self.negative[anchors] * is_inside)


def anchor_targets(labels: Tensor, scaling: TargetScaling, dtype: torch.dtype) -> AnchorTargets:
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
    _, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    class_size = counts[inverse].to(torch.float64)
    n_positive, n_negative = class_size - 1, len(labels) - class_size
    is_anchor = n_positive > 0
    if not bool(is_anchor.any()):
        raise DatasetError(
            f"No label has two images among {len(labels)}: there is no positive pair to learn from."
        )
    if scaling == "per_anchor":
        n_anchors = is_anchor.sum()
        positive = 1 / (n_anchors * n_positive)
        negative = is_anchor / (n_anchors * n_negative)
    else:
        positive = torch.ones_like(class_size) / n_positive.sum()
        negative = torch.ones_like(class_size) / n_negative.sum()
    positive = torch.where(is_anchor, positive, 0.0)
    negative = torch.where(n_negative > 0, negative, 0.0)
    return AnchorTargets(positive.to(dtype), negative.to(dtype), class_size.to(dtype), len(counts))


def minibatch_targets(is_positive: Tensor, is_inside: Tensor, dtype: torch.dtype) -> Tensor:
    """Return targets that estimate sums over the data set from the pairs of a minibatch.

    The targets are Warburg et al. 2023, Eq. 20, times the factor |D²| / |B| of Eq. 21. A positive
    pair has the target 1 / |B_pos|, and a negative pair inside the margin has the target -1 /
    |B_neg|. |B_neg| also counts the negative pairs outside the margin. The estimates for `global`
    are unbiased under two conditions. First, positive pairs and negative pairs are each drawn
    uniformly. Second, all minibatches have the same number of positive pairs and the same number of
    negative pairs. If the classes have equal size, a sampler that draws labels, and then n images
    of each label, fulfils both conditions.

    Parameters
    ----------
    is_positive : (P,) bool, whether the images of the pair have the same label.
    is_inside : (P,) bool, whether the pair is inside the margin.
    dtype : type of the targets.

    Returns
    -------
    (P,)
    """
    n_positive = is_positive.sum().clamp_min(1).to(dtype)
    n_negative = (~is_positive).sum().clamp_min(1).to(dtype)
    return torch.where(is_positive, 1 / n_positive, -(is_inside.to(dtype) / n_negative))
