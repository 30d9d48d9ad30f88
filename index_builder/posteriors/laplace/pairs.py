"""The curvature of given pairs of a minibatch, computed without a Jacobian for each pair."""

from __future__ import annotations

import torch
from torch import Tensor

from index_builder.arrays import extended
from index_builder.posteriors.laplace import kronecker_pairs
from index_builder.posteriors.laplace.all_pairs import own_terms
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split
from index_builder.posteriors.laplace.kronecker import PartialTraces
from index_builder.posteriors.laplace.kronecker_pairs import own_traces, spanning, within

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
    basis = spanning(scaled) if weight.shape[1] > kronecker_pairs.MAX_DENSE else None
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
