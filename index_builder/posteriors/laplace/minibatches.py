"""Loss and curvature of a minibatch, and estimates of the data set's curvature from minibatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from index_builder.arrays import Array, FeatureBlocks, to_numpy
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split, Structure
from index_builder.posteriors.laplace.feature_blocks import gather
from index_builder.posteriors.laplace.kronecker import PartialTraces
from index_builder.posteriors.laplace.pairs import pair_curvature, pair_traces
from index_builder.posteriors.laplace.targets import AnchorTargets, TargetScaling, anchor_targets

Sum = TypeVar("Sum", Curvature, PartialTraces)
"""The type of a curvature sum: a diagonal, or partial traces."""


@dataclass(frozen=True, slots=True)
class MinibatchPlan:
    """How to draw minibatches: draw labels uniformly, then draw images of each drawn label.

    Attributes
    ----------
    n_minibatches : number of minibatches.
    n_labels : number of labels in a minibatch, at least 2. If the data have fewer labels, all
        labels are in the minibatch.
    n_images : number of images of each label, at least 2. If a label has fewer images, all its
        images are in the minibatch.
    """

    n_minibatches: int = 256
    n_labels: int = 8
    n_images: int = 8

    def __post_init__(self) -> None:
        if self.n_minibatches < 1 or self.n_labels < 2 or self.n_images < 2:
            raise ValueError(f"{self}: wanted 1 or more minibatches of 2 or more labels and images")

    def draw(self, labels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return the rows of each minibatch; no row occurs twice in a minibatch.

        Parameters
        ----------
        labels : (N,) int64, of the data set.
        generator : on the CPU.
        """
        sizes = torch.unique(labels, return_counts=True)[1].tolist()
        members = torch.split(torch.argsort(labels, stable=True), sizes)
        minibatches = []
        for _ in range(self.n_minibatches):
            rows = []
            for label in torch.randperm(len(members), generator=generator)[: self.n_labels]:
                of_label = members[int(label)]
                order = torch.randperm(len(of_label), generator=generator)[: self.n_images]
                rows.append(of_label[order.to(labels.device)])
            minibatches.append(torch.cat(rows))
        return minibatches

    def probability(self, targets: AnchorTargets, i: Tensor, j: Tensor, same: Tensor) -> Tensor:
        """Return the probability that a minibatch contains both images of a pair.

        Parameters
        ----------
        targets : used for the class sizes.
        i, j : (P,) int64, rows of the targets.
        same : (P,) bool, whether the two images have the same label.
        """
        n_labels = min(self.n_labels, targets.n_classes)
        size_i, size_j = targets.class_size[i], targets.class_size[j]
        kept_i, kept_j = size_i.clamp_max(self.n_images), size_j.clamp_max(self.n_images)
        second_given_first = torch.where(
            same,
            (kept_i - 1) / (size_i - 1).clamp_min(1),
            (kept_j / size_j) * (n_labels - 1) / max(1, targets.n_classes - 1),
        )
        probability: Tensor = second_given_first * (kept_i / size_i) * n_labels / targets.n_classes
        return probability


@dataclass(frozen=True, slots=True)
class Drawn:
    """Targets of the data set and the sampling plan, for an unbiased estimate from a minibatch.

    Attributes
    ----------
    targets : the data set's targets, for the B rows of the minibatch.
    plan : the plan that drew the minibatch.
    """

    targets: AnchorTargets
    plan: MinibatchPlan


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


def minibatch_curvature(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    margin: float,
    approximation: Approximation,
    split: Split,
    drawn: Drawn | None = None,
) -> Curvature:
    """Curvature over all pairs of a minibatch: an unbiased estimate of the data set's curvature.

    The weight of a pair is its target divided by its sampling probability (Horvitz and Thompson
    1952). For classes of equal size, this is Eq. 20 of Warburg et al. 2023; see
    `minibatch_targets`. For classes of unequal size, Eq. 20 is biased, and this estimate is
    unbiased. The result is not clipped at zero.

    Parameters
    ----------
    features : (B, F)
    labels : (B,) int64.
    weight, bias : (D, F), (D,); the last layer.
    margin : distance on the unit sphere.
    approximation, split : see `Approximation` and `Split`.
    drawn : targets of the data set, and the sampling plan. If None, Eq. 20 is used, which is
        correct for classes of equal size.
    """
    of_pairs = partial(
        pair_curvature, features, weight, bias, approximation=approximation, split=split
    )
    embeddings = torch.addmm(bias, features, weight.T)
    return _over_all_pairs(of_pairs, embeddings, labels, margin, approximation, drawn)


def minibatch_traces(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    margin: float,
    approximation: Approximation,
    split: Split,
    drawn: Drawn | None = None,
) -> PartialTraces:
    """Return the partial traces of `minibatch_curvature`, with the same arguments."""
    of_pairs = partial(
        pair_traces, features, weight, bias, approximation=approximation, split=split
    )
    embeddings = torch.addmm(bias, features, weight.T)
    return _over_all_pairs(of_pairs, embeddings, labels, margin, approximation, drawn)


def _over_all_pairs(
    of_pairs: Callable[..., Sum],
    embeddings: Tensor,
    labels: Tensor,
    margin: float,
    approximation: Approximation,
    drawn: Drawn | None,
) -> Sum:
    """Return the sum over all pairs of a minibatch, weighted so that the sum is unbiased."""
    first, second = _distinct_pairs(len(labels), labels.device)
    inside = _is_inside(embeddings, first, second, margin)
    same = labels[first] == labels[second]
    if drawn is None:
        return of_pairs(first, second, minibatch_targets(same, inside, embeddings.dtype))
    probability = drawn.plan.probability(drawn.targets, first, second, same)
    forth = drawn.targets.of_pairs(first, same, inside) / probability
    back = drawn.targets.of_pairs(second, same, inside) / probability
    if approximation != "fixed":
        return of_pairs(first, second, forth + back)
    anchors, partners = torch.cat([first, second]), torch.cat([second, first])
    return of_pairs(anchors, partners, torch.cat([forth, back]), anchored=True)


def minibatch_loss(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Contrastive loss of a minibatch; `minibatch_curvature` is its curvature.

    The loss is the mean of ½ d² over positive pairs plus the mean of ½ (m² - d²)₊ over negative
    pairs. This is Warburg et al. 2023, Eq. 21, with a correction: the third case of Eq. 11 is ½ (m²
    - d²)₊, which is continuous at the margin.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    margin : m, distance on the unit sphere.
    """
    first, second = _distinct_pairs(len(labels), labels.device)
    z = torch.nn.functional.normalize(embeddings)
    half_squared = 1 - (z @ z.T)[first, second]
    is_positive = labels[first] == labels[second]
    slack = (margin**2 / 2 - half_squared).clamp_min(0)
    paid = torch.where(is_positive, half_squared, slack)
    inside = torch.ones_like(is_positive)
    return (paid * minibatch_targets(is_positive, inside, paid.dtype).abs()).sum()


def estimated(
    of_minibatch: Callable[..., Sum],
    features: FeatureBlocks,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: AnchorTargets,
    plan: MinibatchPlan,
    *,
    margin: float,
    split: Split,
    generator: torch.Generator,
) -> Sum:
    """Return an unbiased estimate of the curvature `full` over all pairs, not clipped at zero.

    Parameters
    ----------
    of_minibatch : `minibatch_curvature` or `minibatch_traces`.
    features, labels, weight, bias, targets : features, labels, last layer and targets of the data
        set. The features are read once. The rows of all minibatches are in memory, at most
        n_minibatches · n_labels · n_images.
    plan : number of minibatches, and how they are drawn.
    margin, split : as in `minibatch_curvature`.
    generator : draws the minibatches.
    """
    minibatches = plan.draw(labels, generator)
    held, places = torch.unique(torch.cat(minibatches), return_inverse=True)
    gathered = gather(features, weight, held, len(labels))

    def one(rows: Tensor, place: Tensor) -> Sum:
        return of_minibatch(
            gathered[place],
            labels[rows],
            weight,
            bias,
            margin=margin,
            approximation="full",
            split=split,
            drawn=Drawn(targets.of(rows), plan),
        )

    sizes = [len(rows) for rows in minibatches]
    first, *others = zip(minibatches, torch.split(places, sizes), strict=True)
    total = one(*first)
    for rows, place in others:
        total = total + one(rows, place)
    return total * (1 / plan.n_minibatches)


def estimated_curvature(
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    structure: Structure,
    scaling: TargetScaling,
    plan: MinibatchPlan,
    *,
    margin: float,
    split: Split,
    seed: int,
) -> Curvature | PartialTraces:
    """Return `estimated` for arrays of NumPy or tensors; the result has the type of ``weight``.

    Parameters
    ----------
    structure : `diagonal` for a `Curvature`, `kronecker` for `PartialTraces`.
    scaling : see `TargetScaling`.
    seed : seed of the minibatches.
    """
    codes, mean, shift = (torch.as_tensor(one) for one in (labels, weight, bias))
    of_minibatch: Callable[..., Any] = minibatch_traces
    if structure == "diagonal":
        of_minibatch = minibatch_curvature
    found: Curvature | PartialTraces = estimated(
        of_minibatch,
        lambda: map(torch.as_tensor, features()),
        codes,
        mean,
        shift,
        anchor_targets(codes, scaling, mean.dtype),
        plan,
        margin=margin,
        split=split,
        generator=torch.Generator().manual_seed(seed),
    )
    if not isinstance(weight, np.ndarray):
        return found
    arrays = (getattr(found, one.name) for one in fields(found))
    return type(found)(*(None if one is None else to_numpy(one) for one in arrays))


def _distinct_pairs(n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return all pairs (i, j) with i < j; the loss is symmetric, so pairs (j, i) are not needed."""
    first, second = torch.triu_indices(n_rows, n_rows, offset=1, device=device)
    return first, second


def _is_inside(h: Tensor, first: Tensor, second: Tensor, margin: float) -> Tensor:
    """Return whether ‖z_i - z_j‖ ≤ m, which is equivalent to z_iᵀ z_j ≥ 1 - m² / 2."""
    z = torch.nn.functional.normalize(h)
    return (z @ z.T)[first, second] >= 1 - margin**2 / 2
