"""Targets y_ij: what weight each pair of images has in the contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from model_store.errors import DatasetError

TargetScaling = Literal["per_anchor", "global"]
"""The weighting of a data set's pairs against each other.

`per_anchor`: each anchor's positives weigh 1 / |A| together, its negatives -1 / |A|, with A the
anchors that have a positive. This is what the proof of Prop. F.3 of Warburg et al. 2023 uses, and
what keeps `fixed` non-negative. `global`: Eq. 13, 1 / |D²pos| and -1 / |D²neg| for every pair,
under which large classes dominate and `fixed` can be negative for images of small ones. With
classes of equal size the two are the same. Pairs of an image with itself are left out of both."""


@dataclass(frozen=True, slots=True)
class AnchorTargets:
    """Targets of all pairs (i, j), j ≠ i, of a data set: they depend on the anchor i alone.

    Attributes
    ----------
    positive : (N,), y_ij where j has the label of i; 0 where no such j exists.
    negative : (N,), -y_ij where j has another label and is inside the margin.
    class_size : (N,), number of images with the label of i, itself included.
    n_classes : number of labels.
    """

    positive: Tensor
    negative: Tensor
    class_size: Tensor
    n_classes: int

    def of(self, rows: Tensor) -> AnchorTargets:
        """Those of some images, (B,) int64; the others are still what they are partners of."""
        return replace(
            self,
            positive=self.positive[rows],
            negative=self.negative[rows],
            class_size=self.class_size[rows],
        )

    def of_pairs(self, anchors: Tensor, is_positive: Tensor, is_inside: Tensor) -> Tensor:
        """y_ij (P,) of pairs whose first images are the rows ``anchors`` (P,)."""
        return torch.where(is_positive, self.positive[anchors], -self.negative[anchors] * is_inside)


def anchor_targets(labels: Tensor, scaling: TargetScaling, dtype: torch.dtype) -> AnchorTargets:
    """Targets of all ordered pairs of a data set.

    Warburg et al. 2023, Eq. 13, without the trivial pairs i = i, or per anchor as in Eq. 109.

    Parameters
    ----------
    labels : (N,) int64.
    scaling : see `TargetScaling`.
    dtype : of the result.

    Raises
    ------
    DatasetError : no label has two images: no pair is positive.
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
    """Targets of the pairs of a minibatch, such that their sum estimates that of the data set.

    Warburg et al. 2023, Eq. 20 times the factor |D²| / |B| of Eq. 21: 1 / |B_pos| for positives,
    -1 / |B_neg| for negatives inside the margin, with |B_neg| counting those outside too. Unbiased
    for `global` targets where positives are drawn uniformly from those of the data set, and so are
    negatives, and as many in every minibatch; so it is for classes of equal size and a sampler that
    draws labels, and then as many images of each.

    Parameters
    ----------
    is_positive : (P,) bool, the pair shares a label.
    is_inside : (P,) bool, the pair is inside the margin.
    dtype : of the result.

    Returns
    -------
    (P,)
    """
    n_positive = is_positive.sum().clamp_min(1).to(dtype)
    n_negative = (~is_positive).sum().clamp_min(1).to(dtype)
    return torch.where(is_positive, 1 / n_positive, -(is_inside.to(dtype) / n_negative))
