"""Partial traces of the curvature over all N² pairs of a data set, or over given pairs.

As in `all_pairs`, the terms of a single image depend on its partners only through two sums. One
blocked N × N comparison of the images is therefore enough for all pairs. The joint terms of two
images factorise over the rows of a class. `kronecker` defines the terms.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from index_builder.networks.feature_blocks import FeatureBlocks
from index_builder.posteriors.laplace.all_pairs import (
    class_groups,
    coordinates_of,
    fixed_pull,
    positives_pull,
)
from index_builder.posteriors.laplace.curvature import Approximation, Split
from index_builder.posteriors.laplace.feature_blocks import checked_blocks, gather, project
from index_builder.posteriors.laplace.kronecker import MAX_RANK, PartialTraces
from index_builder.posteriors.laplace.pairs import weights_between
from index_builder.posteriors.laplace.targets import AnchorTargets

MAX_DENSE = 4096
"""Maximum number of features for a full feature matrix. A matrix of this size takes 134 MB in
float64, and its decomposition takes a minute."""

_SAMPLE = 2048
"""Maximum number of images that determine a basis."""


@torch.no_grad()
def feature_basis(
    features: FeatureBlocks, weight: Tensor, bias: Tensor, n_rows: int
) -> Tensor | None:
    """Return an orthonormal basis (F + 1, K) of the features; None means all F + 1 dimensions.

    All dimensions are kept if F ≤ `MAX_DENSE`, unless the images are so few that they span a much
    smaller space.

    The basis is the uncentred principal directions of φ̃ / ‖h‖, after dividing each feature by its
    root mean square. These directions are computed from at most `_SAMPLE` images, spread evenly
    over the data set. Within the basis, the traces over all images are exact. Outside the basis,
    only the diagonal is exact, and the curvature is assumed to be isotropic.

    Parameters
    ----------
    features : features of the data set; they are read once.
    n_rows : number of images.
    weight, bias : (D, F), (D,); the last layer.
    """
    n_features = weight.shape[1]
    if n_features <= MAX_DENSE and n_rows > min(MAX_RANK, n_features // 2):
        return None
    rows = torch.arange(0, n_rows, -(-n_rows // _SAMPLE), device=weight.device)
    some = gather(features, weight, rows, n_rows)
    return _spanning(_extended(some) / torch.addmm(bias, some, weight.T).norm(dim=1, keepdim=True))


def _spanning(rows: Tensor) -> Tensor:
    """Return an orthonormal basis (F + 1, K) of the principal directions of ``rows`` (n, F + 1)."""
    units = rows.square().mean(0).sqrt()
    units = units.clamp_min(1e-3 * float(units.max()))
    scaled = rows / units
    values, vectors = torch.linalg.eigh(scaled.double() @ scaled.double().T)
    # Directions below the rounding error of the rows or of this matrix are noise.
    rounding = max(torch.finfo(rows.dtype).eps, len(rows) * torch.finfo(torch.double).eps)
    kept = (values > rounding * values[-1]).flip(0)[:MAX_RANK]
    leading = vectors.flip(1)[:, : len(kept)][:, kept]
    basis: Tensor = torch.linalg.qr((scaled.T @ leading.to(scaled)) * units[:, None])[0]
    return basis


@torch.no_grad()
def fixed_traces(
    features: FeatureBlocks,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: AnchorTargets,
    *,
    split: Split,
    margin: float,
    basis: Tensor | None = None,
) -> PartialTraces:
    """Return the partial traces of `fixed` over all ordered pairs; see `fixed_curvature`.

    Parameters
    ----------
    basis : basis of the features, see `PartialTraces`. The features are read twice.
    """
    h = project(features, weight, bias, len(labels))
    norms = h.norm(dim=1, keepdim=True)
    pull = fixed_pull(h / norms, labels, targets, split=split, margin=margin)
    blocks = checked_blocks(features, weight, len(labels))
    total, first = PartialTraces.zeros_like(weight, basis), 0
    for block in blocks:
        rows = slice(first, first + len(block))
        scaled = _extended(block).div_(norms[rows])
        total += _own(scaled, h[rows] / norms[rows], pull[rows], split, basis)
        first += len(block)
    return total


@torch.no_grad()
def positives_traces(
    features: FeatureBlocks,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: AnchorTargets,
    *,
    split: Split,
    basis: Tensor | None = None,
    max_bytes: int = 2**30,
) -> PartialTraces:
    """Return the partial traces of `positives` over all pairs; see `positives_curvature`."""
    h = project(features, weight, bias, len(labels))
    norms = h.norm(dim=1, keepdim=True)
    z = h / norms
    pull = positives_pull(z, labels, targets, split=split)
    total = PartialTraces.zeros_like(weight, basis)
    n_bytes = weight.shape[1] * weight.element_size()
    # `class_groups` skips labels with a single image: they have no pair, and their target is zero.
    for group in class_groups(labels, max_bytes // n_bytes):
        gathered = gather(features, weight, torch.cat(group), len(labels))
        parts = torch.split(gathered, [len(rows) for rows in group])
        for rows, phi in zip(group, parts, strict=True):
            scaled = _extended(phi).div_(norms[rows])
            total += _own(scaled, z[rows], pull[rows], split, basis)
            joint = _joint_of_class(scaled, z[rows], basis)
            total += joint * (-2 * float(targets.positive[rows[0]]))
    return total


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
    z, scaled = h / norms, _extended(features) / norms
    basis = _spanning(scaled) if weight.shape[1] > MAX_DENSE else None
    pull = y @ z if split == "arccos" else y.sum(1, keepdim=True)
    own = _own(scaled, z, pull, split, basis)
    if approximation == "fixed":
        return own
    cosines, inner = (z @ z.T).double(), (scaled @ scaled.T).double() * y.double()
    z = z.double()
    outputs = torch.eye(len(weight)).to(z) * inner.sum()
    crossed = (inner.sum(1, keepdim=True) * z).T @ z
    outputs -= crossed + crossed.T
    outputs += z.T @ (inner * cosines) @ z
    between = y.double() * (len(weight) - 2 + cosines.square())
    rows, whole = _within(scaled, basis), scaled.double()
    diagonal = (whole * (between @ whole)).sum(0)
    return own + PartialTraces(rows.T @ between @ rows, outputs, diagonal, basis) * -1.0


def _own(
    scaled: Tensor, z: Tensor, pull: Tensor, split: Split, basis: Tensor | None
) -> PartialTraces:
    """Return the traces of Σ_i M_i ⊗ ψ_i ψ_iᵀ, the terms of single images.

    Parameters
    ----------
    scaled : (n, F + 1), ψ = φ̃ / ‖h‖.
    z : (n, D), unit directions.
    pull : Σ_j y_ij (n, 1) for `euclidean`, Σ_j y_ij z_j (n, D) for `arccos`.
    split : see `Split`.
    basis : basis of the features.
    """
    entries = scaled.square()  # no copy in float64: this is the largest array
    squares = entries.sum(1, keepdim=True).double()
    z, pull, dim = z.double(), pull.double(), z.shape[1]
    if split == "euclidean":
        amount = pull
        outputs = -((squares * amount * z).T @ z)
    else:
        amount = (z * pull).sum(1, keepdim=True)
        crossed = (squares * z).T @ pull
        outputs = crossed + crossed.T - 3 * (squares * amount * z).T @ z
    outputs.diagonal().add_((squares * amount).sum())
    rows, amount = _within(scaled, basis), (dim - 1) * amount
    diagonal = (amount.T.to(entries) @ entries)[0].double()
    return PartialTraces(rows.T @ (amount * rows), outputs, diagonal, basis)


def _joint_of_class(scaled: Tensor, z: Tensor, basis: Tensor | None) -> PartialTraces:
    """Return the traces of Σ_ij P_i P_j ⊗ ψ_i ψ_jᵀ over the rows of one class, i = j included.

    Let z_i = V x_i, where V holds the few principal directions of the class. Every term then
    consists of sums over single rows, S_kl = Σ_i x_ik x_il ψ_i and s = Σ_i ψ_i:

        tr_D = (D - 2) s sᵀ + Σ_kl S_kl S_klᵀ
        tr_F = ‖s‖² I - Σ_i (ψ_iᵀ s) (z_i z_iᵀ + its transpose) + V (Σ_k S_kl ᵀ S_km)_lm Vᵀ
    """
    # The axes of the coordinates are orthonormal; V therefore also transforms the third sum back.
    x = coordinates_of(z)
    turn = torch.linalg.lstsq(x.double(), z.double()).solution
    rank, dim = x.shape[1], z.shape[1]
    k, m = torch.triu_indices(rank, rank, device=z.device)
    sums = ((x[:, k] * x[:, m]).T @ scaled).double()
    total = scaled.double().sum(0)
    inner = (scaled.double() @ total)[:, None]
    outputs = -2 * (inner * z.double()).T @ z.double()
    outputs.diagonal().add_(total @ total)
    full = sums.new_empty(rank, rank, sums.shape[1])
    full[k, m] = sums
    full[m, k] = sums
    flat = full.reshape(rank, -1)
    outputs += turn.T @ (flat @ flat.T) @ turn
    factors = torch.where(k == m, 1, 2).to(sums)[:, None]
    diagonal = (factors * sums.square()).sum(0) + (dim - 2) * total.square()
    rows, one = _within(sums, basis), _within(total[None], basis)
    features = rows.T @ (factors * rows) + (dim - 2) * one.T @ one
    return PartialTraces(features, outputs, diagonal, basis)


def _extended(features: Tensor) -> Tensor:
    """φ̃ = (φ, 1) (n, F + 1) of features (n, F)."""
    return functional.pad(features, (0, 1), value=1.0)


def _within(rows: Tensor, basis: Tensor | None) -> Tensor:
    """Coordinates (n, K) in the basis, float64, of rows (n, F + 1)."""
    return rows.double() if basis is None else (rows @ basis.to(rows)).double()
