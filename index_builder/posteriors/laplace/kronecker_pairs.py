"""Partial traces of the curvature over all N² pairs of a data set.

As in `all_pairs`, the terms of a single image depend on its partners only through two sums. One
blocked N × N comparison of the images is therefore enough for all pairs. The joint terms of two
images factorise over the rows of a class. `kronecker` defines the terms.
"""

from __future__ import annotations

import numpy as np

from index_builder.arrays import (
    Array,
    FeatureBlocks,
    affine,
    double,
    extended,
    like,
    namespace,
    norms,
)
from index_builder.posteriors.laplace.all_pairs import (
    class_features,
    fixed_pull,
    positives_pull,
    principal_coordinates,
)
from index_builder.posteriors.laplace.curvature import Split
from index_builder.posteriors.laplace.feature_blocks import checked_blocks, gather, project
from index_builder.posteriors.laplace.kronecker import MAX_RANK, PartialTraces
from index_builder.posteriors.laplace.targets import AnchorTargets

MAX_DENSE = 4096
"""Maximum number of features for a full feature matrix. A matrix of this size takes 134 MB in
float64, and its decomposition takes a minute."""

_SAMPLE = 2048
"""Maximum number of images that determine a basis."""


def feature_basis(features: FeatureBlocks, weight: Array, bias: Array, n_rows: int) -> Array | None:
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
    some = gather(features, weight, np.arange(0, n_rows, -(-n_rows // _SAMPLE)), n_rows)
    return spanning(extended(some) / norms(affine(some, weight, bias)))


def spanning(rows: Array) -> Array:
    """Return an orthonormal basis (F + 1, K) of the principal directions of ``rows`` (n, F + 1)."""
    xp = namespace(rows)
    units = xp.mean(rows**2, axis=0) ** 0.5
    units = xp.clip(units, 1e-3 * float(xp.max(units)), None)
    scaled = rows / units
    values, vectors = xp.linalg.eigh(double(scaled) @ double(scaled).T)
    # Directions below the rounding error of the rows or of this matrix are noise.
    rounding = max(xp.finfo(rows.dtype).eps, len(rows) * xp.finfo(xp.float64).eps)
    kept = xp.flip(values > rounding * values[-1], axis=0)[:MAX_RANK]
    leading = xp.flip(vectors, axis=1)[:, : len(kept)][:, kept]
    return xp.linalg.qr((scaled.T @ like(leading, scaled)) * units[:, None])[0]


def fixed_traces(
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    targets: AnchorTargets,
    *,
    split: Split,
    margin: float,
    basis: Array | None = None,
) -> PartialTraces:
    """Return the partial traces of `fixed` over all ordered pairs; see `fixed_curvature`.

    Parameters
    ----------
    basis : basis of the features, see `PartialTraces`. The features are read twice.
    """
    h = project(features, weight, bias, len(labels))
    lengths = norms(h)
    pull = fixed_pull(h / lengths, labels, targets, split=split, margin=margin)
    blocks = checked_blocks(features, weight, len(labels))
    total, first = PartialTraces.zeros_like(weight, basis), 0
    for block in blocks:
        rows = slice(first, first + len(block))
        scaled = extended(block) / lengths[rows]
        total += own_traces(scaled, h[rows] / lengths[rows], pull[rows], split, basis)
        first += len(block)
    return total


def positives_traces(
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    targets: AnchorTargets,
    *,
    split: Split,
    basis: Array | None = None,
    max_bytes: int = 2**30,
) -> PartialTraces:
    """Return the partial traces of `positives` over all pairs; see `positives_curvature`."""
    h = project(features, weight, bias, len(labels))
    lengths = norms(h)
    z = h / lengths
    pull = positives_pull(z, labels, targets, split=split)
    total = PartialTraces.zeros_like(weight, basis)
    # Labels with a single image are skipped: they have no pair, and their target is zero.
    for rows, phi in class_features(features, labels, weight, max_bytes):
        scaled = extended(phi) / lengths[rows]
        total += own_traces(scaled, z[rows], pull[rows], split, basis)
        joint = _joint_of_class(scaled, z[rows], basis)
        total += joint * (-2 * float(targets.positive[rows[0]]))
    return total


def own_traces(
    scaled: Array, z: Array, pull: Array, split: Split, basis: Array | None
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
    xp = namespace(scaled)
    entries = scaled**2  # no copy in float64: this is the largest array
    squares = double(xp.sum(entries, axis=1, keepdims=True))
    z, pull, dim = double(z), double(pull), z.shape[1]
    if split == "euclidean":
        amount = pull
        outputs = -((squares * amount * z).T @ z)
    else:
        amount = xp.sum(z * pull, axis=1, keepdims=True)
        crossed = (squares * z).T @ pull
        outputs = crossed + crossed.T - 3 * (squares * amount * z).T @ z
    outputs = outputs + xp.eye(dim, dtype=xp.float64, device=z.device) * xp.sum(squares * amount)
    rows, amount = within(scaled, basis), (dim - 1) * amount
    diagonal = double((like(amount.T, entries) @ entries)[0])
    return PartialTraces(rows.T @ (amount * rows), outputs, diagonal, basis)


def _joint_of_class(scaled: Array, z: Array, basis: Array | None) -> PartialTraces:
    """Return the traces of Σ_ij P_i P_j ⊗ ψ_i ψ_jᵀ over the rows of one class, i = j included.

    Let z_i = V x_i, where V holds the few principal directions of the class. Every term then
    consists of sums over single rows, S_kl = Σ_i x_ik x_il ψ_i and s = Σ_i ψ_i:

        tr_D = (D - 2) s sᵀ + Σ_kl S_kl S_klᵀ
        tr_F = ‖s‖² I - Σ_i (ψ_iᵀ s) (z_i z_iᵀ + its transpose) + V (Σ_k S_kl ᵀ S_km)_lm Vᵀ
    """
    # The axes of the coordinates are orthonormal; V therefore also transforms the third sum back.
    xp = namespace(scaled)
    x, turn = principal_coordinates(z)
    rank, dim = x.shape[1], z.shape[1]
    k, m = np.triu_indices(rank)
    sums = double((x[:, k] * x[:, m]).T @ scaled)
    total = xp.sum(double(scaled), axis=0)
    inner = (double(scaled) @ total)[:, None]
    outputs = -2 * (inner * double(z)).T @ double(z)
    outputs += xp.eye(dim, dtype=xp.float64, device=z.device) * (total @ total)
    full = xp.empty((rank, rank, sums.shape[1]), dtype=xp.float64, device=z.device)
    full[k, m] = sums
    full[m, k] = sums
    flat = xp.reshape(full, (rank, -1))
    outputs += turn.T @ (flat @ flat.T) @ turn
    factors = xp.asarray(np.where(k == m, 1.0, 2.0), device=z.device)[:, None]
    diagonal = xp.sum(factors * sums**2, axis=0) + (dim - 2) * total**2
    rows, one = within(sums, basis), within(total[None], basis)
    features = rows.T @ (factors * rows) + (dim - 2) * one.T @ one
    return PartialTraces(features, outputs, diagonal, basis)


def within(rows: Array, basis: Array | None) -> Array:
    """Coordinates (n, K) in the basis, float64, of rows (n, F + 1)."""
    return double(rows) if basis is None else double(rows @ like(basis, rows))
