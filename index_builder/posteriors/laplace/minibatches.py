"""Loss and curvature of a minibatch, and estimates of the data set's curvature from minibatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from index_builder.arrays import extended, to_numpy
from index_builder.posteriors.laplace.curvature import AnchorTargets, TargetScaling, anchor_targets

from . import all_pairs
from .all_pairs import TrainedLayer, own_terms, own_traces, spanning, within
from .curvature import Approximation, Curvature, Split, Structure
from .kronecker import PartialTraces

_ELEMENTS = 2**20
"""Number of entries of a temporary array: 4 MB in float32, which fits into the cache."""

_GATHER_COST = 40
"""Measured cost of gathering and multiplying two entries, in multiply-adds."""


@torch.no_grad()
def pair_curvature(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    *,
    approximation: Approximation,
    split: Split,
    anchored: bool = False,
) -> Curvature:
    """Diagonal curvature of the contrastive loss over some pairs, before it is clipped at zero.

    The generalised Gauss-Newton matrix is Σ_p y_p (J_iᵀ H₁₁ J_i + J_jᵀ H₂₂ J_j + 2 J_iᵀ H₁₂ J_j)
    (Warburg et al. 2023, Eq. 71-97). `fixed` leaves out H₁₂. A pair of an image with itself
    contributes nothing, because its loss is zero. If a pair occurs several times, its weights are
    added first. The sum is then over images, and there are far fewer images than pairs:

        diag(J_iᵀ H₁₁ J_i)_df = own_id φ_if² / r_i²            r = ‖h‖, u = h / r
        diag(J_iᵀ H₁₂ J_j)_df = -(1 - u_id² - u_jd² + u_iᵀu_j u_id u_jd) φ_if φ_jf / (r_i r_j)

    with own = 1 - u_i² (`euclidean`) or own = c (1 - 3 u_i²) + 2 u_i u_j, c = u_iᵀu_j (`arccos`).
    The H₁₂ term is equal in both splits.

    Parameters
    ----------
    features : (B, F), the images of the minibatch.
    weight, bias : (D, F), (D,); the last layer h = W φ + b.
    first, second : (P,) int64, rows of the features.
    targets : (P,), y; positive for positive pairs, negative for negatives inside the margin, zero
        outside.
    approximation, split : see `Approximation` and `Split`.
    anchored : whether a pair counts twice for its first image and not for its second image, as in
        `fixed_curvature`. It must be False unless ``approximation`` is `fixed`: only `fixed` has no
        joint terms.
    """
    y = weights_between(len(features), first, second, targets, approximation, anchored=anchored)
    h = torch.addmm(bias, features, weight.T)
    norms = h.norm(dim=1, keepdim=True)
    u = h / norms
    n_rows = len(features)
    pull = y @ u if split == "arccos" else y.sum(1, keepdim=True)
    own = own_terms(u, pull, split) / norms**2
    if approximation == "fixed":
        return Curvature(own.T @ features.square(), own.sum(0))
    y /= norms * norms.T
    pairs = y.triu().nonzero().T
    if len(pairs[0]) * (len(own[0]) + _GATHER_COST) < n_rows**2 * len(own[0]):
        return _by_pairs(features, u, own, y, pairs)
    return _by_dimensions(features, u, own, y)


@torch.no_grad()
def pair_traces(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    *,
    approximation: Approximation,
    split: Split,
    anchored: bool = False,
) -> PartialTraces:
    """Return the partial traces over some pairs of a minibatch; see `pair_curvature`.

    For more than `MAX_DENSE` features, the traces use a basis of the minibatch's features.
    """
    y = weights_between(len(features), first, second, targets, approximation, anchored=anchored)
    h = torch.addmm(bias, features, weight.T)
    norms = h.norm(dim=1, keepdim=True)
    z, scaled = h / norms, extended(features) / norms
    basis = spanning(scaled) if weight.shape[1] > all_pairs.MAX_DENSE else None
    pull = y @ z if split == "arccos" else y.sum(1, keepdim=True)
    own = own_traces(scaled, z, pull, split, basis)
    if approximation == "fixed":
        return own
    cosines, inner = (z @ z.T).double(), (scaled @ scaled.T).double() * y.double()
    z = z.double()
    outputs = torch.eye(len(weight)).to(z) * inner.sum()
    crossed = (inner.sum(1, keepdim=True) * z).T @ z
    outputs -= crossed + crossed.T
    outputs += z.T @ (inner * cosines) @ z
    between = y.double() * (len(weight) - 2 + cosines.square())
    rows, whole = within(scaled, basis), scaled.double()
    diagonal = (whole * (between @ whole)).sum(0)
    return own + PartialTraces(rows.T @ between @ rows, outputs, diagonal, basis) * -1.0


def weights_between(
    n_rows: int,
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    approximation: Approximation,
    *,
    anchored: bool,
) -> Tensor:
    """Return the weights of all pairs of images, (B, B), with a zero diagonal.

    If a pair occurs several times, its weights are added. Entry (i, j) is the weight of the pair
    with anchor i and partner j. The matrix is symmetric unless ``anchored``.
    """
    if anchored and approximation != "fixed":
        raise ValueError(f"{approximation=} has joint terms of a pair: it cannot be anchored")
    if approximation == "positives":
        targets = targets.clamp_min(0)
    y = targets.new_zeros(n_rows**2).index_add_(0, first * n_rows + second, targets)
    y = y.view(n_rows, n_rows)
    y = 2 * y if anchored else y + y.T
    return y.fill_diagonal_(0)


def _by_pairs(features: Tensor, u: Tensor, own: Tensor, y: Tensor, pairs: Tensor) -> Curvature:
    """Sum over pairs with products (D x P) (P x F); this is fast for few pairs or a large D."""
    first, second = pairs
    u_first, u_second = u[first], u[second]
    cosines = (u_first * u_second).sum(1, keepdim=True)
    joint = u_first**2 + u_second**2 - 1 - cosines * u_first * u_second
    joint *= 2 * y[first, second, None]
    weight = own.T @ features.square()
    step = max(1, _ELEMENTS // features.shape[1])
    for start in range(0, len(first), step):
        some = slice(start, start + step)
        weight.addmm_(joint[some].T, features[first[some]].mul_(features[second[some]]))
    return Curvature(weight, own.sum(0) + joint.sum(0))


def _by_dimensions(features: Tensor, u: Tensor, own: Tensor, y: Tensor) -> Curvature:
    """Compute φ_fᵀ M_d φ_f with a matrix M_d (B, B) for each dimension d; fast if D is small."""
    n_rows, dim = u.shape
    weight, bias = u.new_empty(dim, features.shape[1]), u.new_empty(dim)
    y_cosine = y * (u @ u.T)
    by_dimension = u.T.contiguous()[:, :, None]
    width = min(1024, features.shape[1])
    step = max(1, _ELEMENTS // (n_rows * max(width, n_rows)))
    for lower in range(0, dim, step):
        dims = slice(lower, lower + step)
        v = by_dimension[dims]
        forms = y * (v**2 + v.mT**2 - 1) - y_cosine * (v * v.mT)
        forms.diagonal(dim1=1, dim2=2).add_(own.T[dims])
        bias[dims] = forms.sum((1, 2))
        for left in range(0, features.shape[1], width):
            columns = slice(left, left + width)
            phi = features[:, columns].contiguous()
            product = (forms.view(-1, n_rows) @ phi).view(-1, *phi.shape)
            weight[dims, columns] = product.mul_(phi).sum(1)
    return Curvature(weight, bias)


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


def _of_minibatch(
    of_pairs: Callable[..., Sum],
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    margin: float,
    approximation: Approximation,
    split: Split,
    drawn: Drawn | None = None,
) -> Sum:
    """Return the sum over all pairs of a minibatch: an unbiased estimate of the data set's sum.

    The weight of a pair is its target divided by its sampling probability (Horvitz and Thompson
    1952). For classes of equal size, this is Eq. 20 of Warburg et al. 2023; see
    `minibatch_targets`. For classes of unequal size, Eq. 20 is biased, and this estimate is
    unbiased. The result is not clipped at zero.

    Parameters
    ----------
    of_pairs : `pair_curvature` or `pair_traces`.
    features : (B, F)
    labels : (B,) int64.
    weight, bias : (D, F), (D,); the last layer.
    margin : distance on the unit sphere.
    approximation, split : see `Approximation` and `Split`.
    drawn : targets of the data set, and the sampling plan. If None, Eq. 20 is used, which is
        correct for classes of equal size.
    """
    of_pairs = partial(of_pairs, features, weight, bias, approximation=approximation, split=split)
    embeddings = torch.addmm(bias, features, weight.T)
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


minibatch_curvature = partial(_of_minibatch, pair_curvature)
"""Curvature over all pairs of a minibatch; see `_of_minibatch` for the arguments."""

minibatch_traces = partial(_of_minibatch, pair_traces)
"""Partial traces of `minibatch_curvature`, with the same arguments."""


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
    layer: TrainedLayer,
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
    layer : the layer, in tensors. Its features are read once. The rows of all minibatches are in
        memory, at most n_minibatches · n_labels · n_images.
    targets : targets of the data set.
    plan : number of minibatches, and how they are drawn.
    margin, split : as in `minibatch_curvature`.
    generator : draws the minibatches.
    """
    minibatches = plan.draw(layer.labels, generator)
    held, places = torch.unique(torch.cat(minibatches), return_inverse=True)
    gathered = layer.gathered(held)

    def one(rows: Tensor, place: Tensor) -> Sum:
        return of_minibatch(
            gathered[place],
            layer.labels[rows],
            layer.weight,
            layer.bias,
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
    layer: TrainedLayer,
    structure: Structure,
    scaling: TargetScaling,
    plan: MinibatchPlan,
    *,
    margin: float,
    split: Split,
    seed: int,
) -> Curvature | PartialTraces:
    """Return `estimated` for arrays of NumPy or tensors; the result has the type of the layer.

    Parameters
    ----------
    structure : `diagonal` for a `Curvature`, `kronecker` for `PartialTraces`.
    scaling : see `TargetScaling`.
    seed : seed of the minibatches.
    """
    known = TrainedLayer(
        lambda: map(torch.as_tensor, layer.features()),
        *map(torch.as_tensor, (layer.labels, layer.weight, layer.bias)),
    )
    of_minibatch: Callable[..., Any] = minibatch_traces
    if structure == "diagonal":
        of_minibatch = minibatch_curvature
    found: Curvature | PartialTraces = estimated(
        of_minibatch,
        known,
        anchor_targets(known.labels, scaling, known.weight.dtype),
        plan,
        margin=margin,
        split=split,
        generator=torch.Generator().manual_seed(seed),
    )
    if not isinstance(layer.weight, np.ndarray):
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
