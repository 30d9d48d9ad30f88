"""The exact curvature over all N² pairs of a data set, in memory linear in N.

Notation: h is the embedding of an image, r = ‖h‖, z = h/r and P = I - z zᵀ. J_i is the Jacobian
dz_i/dW. The curvature has two kinds of terms. The terms of a single image i depend on its partners
j only through Σ_j y_ij and Σ_j y_ij z_j, because cos(h_i, h_j) = z_iᵀ z_j is linear in z_j. One
blocked N x N comparison of the images is therefore enough for all pairs. The diagonal
curvature for all F features is one matrix product, Aᵀ (φ∘φ). Row i of A is the diagonal of the
D x D curvature with respect to h_i. The joint terms of i and j factorise over the rows of a class.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import Array, FeatureBlocks, double, like, namespace, norms, to_numpy
from index_builder.posteriors.laplace.curvature import Curvature, Split
from index_builder.posteriors.laplace.feature_blocks import checked_blocks, gather, project
from index_builder.posteriors.laplace.targets import AnchorTargets

_ROWS = 1024
"""Number of rows of a block of the N x N comparison. A block takes 4 MB in float32, which stays in
the cache."""

_ROUNDINGS = 8
"""A sum of weights is set to zero if it is smaller than this number of units in the last place."""

_PRODUCTS = 256
"""Number of sums computed in one pass over the features."""


def fixed_curvature(
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    targets: AnchorTargets,
    *,
    split: Split,
    margin: float,
) -> Curvature:
    """Diagonal curvature of `fixed` over all ordered pairs, before it is clipped at zero.

    The second derivative is taken with respect to one image of a pair; the other image is a
    constant: Σ_ij 2 y_ij J_iᵀ [∇²_i L(z_i, z_j)] J_i. This is Warburg et al. 2023, Eq. 102, with
    two corrections: the factor y occurs once, and pairs of an image with itself are left out. For
    classes of equal size y_ij = y_ji. The sum is then the second derivative of L(sg z_i, z_j) +
    L(z_i, sg z_j) - sg L(z_i, z_j), where sg stops the gradient. This expression has the value and
    the gradient of the loss; the expression of Eq. 100 has half the gradient. For classes of
    unequal size each pair counts twice for its anchor i, as in Eq. 109. This keeps the sum
    non-negative.

    Parameters
    ----------
    features : re-iterable blocks of φ, read twice.
    labels : (N,) int64.
    weight, bias : (D, F), (D,); the last layer. All other arrays get the number type of the
        last layer.
    targets : targets of the data set.
    split : see `Split`.
    margin : distance on the unit sphere, in (0, 2]. A negative that is farther away than the margin
        has weight zero.
    """
    h = project(features, weight, bias, len(labels))
    xp, lengths = namespace(h), norms(h)
    z = h / lengths
    pull = fixed_pull(z, labels, targets, split=split, margin=margin)
    own = own_terms(z, pull, split) / lengths**2
    total_weight, first = xp.zeros_like(weight), 0
    for block in checked_blocks(features, weight, len(labels)):
        total_weight += own[first : first + len(block)].T @ block**2
        first += len(block)
    return Curvature(total_weight, xp.sum(own, axis=0))


def positives_curvature(
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    targets: AnchorTargets,
    *,
    split: Split,
    max_bytes: int = 2**30,
) -> Curvature:
    """Diagonal curvature of `positives` over all ordered pairs of a label, Warburg et al. Eq. 99.

    The sums include the pairs of an image with itself, because the terms of such a pair cancel
    exactly. In the targets, these pairs are not counted as positive pairs. The cost is N D F R
    multiplications. R is the rank of the unit embeddings of a class: at most D and at most the
    class size.

    Parameters
    ----------
    features : re-iterable blocks of φ; they are read once, and once more for each group of classes.
    labels, weight, bias, targets, split : as in `fixed_curvature`.
    max_bytes : memory for the features of a group of classes. A class whose features need more
        memory forms its own group.
    """
    h = project(features, weight, bias, len(labels))
    xp, lengths = namespace(h), norms(h)
    z = h / lengths
    own = own_terms(z, positives_pull(z, labels, targets, split=split), split) / lengths**2
    of_weight, of_bias = xp.zeros_like(weight), xp.sum(own, axis=0)
    for rows, phi in class_features(features, labels, weight, max_bytes):
        of_weight += own[rows].T @ phi**2
        scaled = phi
        scaled /= lengths[rows]  # in place: a copy would double the largest array
        y = 2 * float(targets.positive[rows[0]])
        inner = coordinates_of(z[rows])
        of_weight -= y * _joint_terms(z[rows], inner, scaled)
        of_bias -= y * _joint_terms(z[rows], inner, 1 / lengths[rows])[:, 0]
    return Curvature(of_weight, of_bias)


def fixed_pull(
    z: Array, labels: Array, targets: AnchorTargets, *, split: Split, margin: float
) -> Array:
    """Return, for each image i, a sum over its partners j; `own_terms` needs it for `fixed`.

    Parameters
    ----------
    z : (N, D), unit directions.
    labels, targets, split, margin : as in `fixed_curvature`.

    Returns
    -------
    2 Σ_j y_ij (N, 1) for `euclidean`, 2 Σ_j y_ij z_j (N, D) for `arccos`.
    """
    inside = _inside_margin_sums(z, labels, margin, with_directions=split == "arccos")
    twice_positive, twice_negative = 2 * targets.positive[:, None], 2 * targets.negative[:, None]
    if split == "arccos":
        return twice_positive * (_class_sums(z, labels) - z) - twice_negative * inside
    pull = twice_positive * (targets.class_size - 1)[:, None]
    total = pull - twice_negative * inside
    # If every negative is inside the margin, the exact sum is zero, but rounding errors remain.
    # They are set to zero, because they must not determine the prior.
    xp = namespace(total)
    rounding = _ROUNDINGS * xp.finfo(total.dtype).eps
    return xp.where(xp.abs(total) < rounding * pull, xp.zeros_like(total), total)


def positives_pull(z: Array, labels: Array, targets: AnchorTargets, *, split: Split) -> Array:
    """Return the sums of `fixed_pull` over positives only; each image is also its own partner."""
    twice_positive = 2 * targets.positive[:, None]
    if split == "arccos":
        return twice_positive * _class_sums(z, labels)
    return twice_positive * targets.class_size[:, None]


def own_terms(z: Array, pull: Array, split: Split) -> Array:
    """Return ‖h_i‖² times the diagonal of the terms of the single image i, (N, D).

    Parameters
    ----------
    z : (N, D), unit directions.
    pull : Σ_j y_ij (N, 1) for `euclidean`, Σ_j y_ij z_j (N, D) for `arccos`.
    split : see `Split`.
    """
    return arccos_own_terms(z, pull) if split == "arccos" else pull * (1 - z**2)


def arccos_own_terms(z: Array, partners: Array) -> Array:
    """‖h_i‖² times the diagonal of Σ_j y_ij ∇²_i (1 - cos(h_i, h_j)), for all i.

    Warburg et al. 2023, Eq. 95, in column form: y (c I + u₁u₂ᵀ + u₂u₁ᵀ - 3 c u₁u₁ᵀ) / ‖h₁‖².

    Parameters
    ----------
    z : (N, D), unit directions u₁.
    partners : (N, D), Σ_j y_ij z_j.
    """
    cosines = namespace(z).sum(z * partners, axis=1, keepdims=True)
    return cosines * (1 - 3 * z**2) + 2 * z * partners


def _inside_margin_sums(z: Array, labels: Array, margin: float, *, with_directions: bool) -> Array:
    """For each row i, count the rows j of other labels inside the margin, or add up their z_j.

    ‖z_i - z_j‖ ≤ m is equivalent to z_iᵀ z_j ≥ 1 - m²/2. The rows are sorted by label, so that
    pairs of one label form rectangles. The comparison is symmetric, so each block is also used
    transposed.

    Returns
    -------
    Counts (N, 1) or, if ``with_directions`` is true, sums (N, D).
    """
    xp = namespace(z)
    order, limits = _by_label(labels)
    z = z[order]
    summed = z if with_directions else xp.ones_like(z[:, :1])
    sums = xp.zeros_like(summed)
    for top in range(0, len(z), _ROWS):
        rows = slice(top, min(top + _ROWS, len(z)))
        for left in range(top, len(z), _ROWS):
            columns = slice(left, min(left + _ROWS, len(z)))
            inside = xp.astype(z[rows] @ z[columns].T >= 1 - margin**2 / 2, z.dtype)
            for lower, upper in pairwise(limits):
                if lower < rows.stop and upper > rows.start and upper > columns.start:
                    inside[
                        max(lower - top, 0) : upper - top, max(lower - left, 0) : upper - left
                    ] = 0
            sums[rows] += inside @ summed[columns]
            if left > top:
                sums[columns] += inside.T @ summed[rows]
    unsorted = xp.empty_like(sums)
    unsorted[order] = sums
    return unsorted


def _joint_terms(z: Array, coordinates: Array, scaled: Array) -> Array:
    """Σ_ij (P_i P_j)_dd φ_if φ_jf / (‖h_i‖ ‖h_j‖) over the rows of one class, i = j included.

    (P_i P_j)_dd = 1 - z_id² - z_jd² + (z_iᵀ z_j) z_id z_jd. The coordinates c fulfil z_iᵀ z_j = Σ_k
    c_ik c_jk. Every term is then a product of sums over single rows; the last term is Σ_k (Σ_i z_id
    c_ik φ_if / ‖h_i‖)².

    Parameters
    ----------
    z : (n, D), unit directions.
    coordinates : (n, R), c.
    scaled : (n, F), φ / ‖h‖, or 1 / ‖h‖ for the bias.

    Returns
    -------
    (D, F)
    """
    xp = namespace(scaled)
    class_sum, rank = xp.sum(scaled, axis=0), coordinates.shape[1]
    joint = class_sum * (class_sum - 2 * (z**2).T @ scaled)
    step = max(1, _PRODUCTS // rank)
    for lower in range(0, z.shape[1], step):
        products = z[:, lower : lower + step, None] * coordinates[:, None]
        sums = xp.reshape(products, (len(z), -1)).T @ scaled
        by_axis = xp.reshape(sums**2, (-1, rank, scaled.shape[1]))
        joint[lower : lower + step] += xp.sum(by_axis, axis=1)
    return joint


def coordinates_of(z: Array) -> Array:
    """Return the coordinates (n, R) of `principal_coordinates`."""
    return principal_coordinates(z)[0]


def principal_coordinates(z: Array) -> tuple[Array, Array]:
    """Return coordinates x (n, R), R ≤ D, with the same inner products as the rows z of a class.

    The second result are the axes V (R, D), orthonormal rows: z ≈ x V.

    The axes of the coordinates are the principal directions of the class. If the r-th direction
    (singular value σ_r) and all directions with smaller singular values are dropped, the joint
    terms shrink by at most σ_r² Σ_i z_id² (φ_if / r_i)². The joint terms are subtracted from n Σ_i
    (1 - z_id²) (φ_if / r_i)². Relative to this sum, the joint terms change by at most σ_r² / n max
    z² / (1 - z²). A direction is dropped if this relative change is smaller than the rounding
    error. In single precision, 6 to 12 of 128 directions remain for the trained classes of
    Fashion-MNIST.
    """
    xp = namespace(z)
    left, singular, axes = xp.linalg.svd(double(z), full_matrices=False)
    eps = xp.finfo(z.dtype).eps
    share = z**2 / xp.clip(1 - z**2, eps, None)
    kept = singular**2 * (float(xp.max(share)) / len(z)) > 8 * eps
    kept[0] = True
    return like((left * singular)[:, kept], z), axes[kept]


def _class_sums(z: Array, labels: Array) -> Array:
    """Return, for each row, the sum of z over the rows with the same label: (N, D)."""
    xp = namespace(z)
    order, limits = _by_label(labels)
    sums = xp.empty_like(z)
    for lower, upper in pairwise(limits):
        rows = order[lower:upper]
        sums[rows] = xp.sum(z[rows], axis=0)
    return sums


def _by_label(labels: Array) -> tuple[NDArray[np.int64], list[int]]:
    """Return the rows (N,) in order of their labels, and where each label starts and ends."""
    codes = to_numpy(labels)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order])) + 1
    return order, [0, *starts.tolist(), len(order)]


def class_features(
    features: FeatureBlocks, labels: Array, weight: Array, max_bytes: int
) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Yield the rows and the features φ (n, F) of each class with two or more images.

    Parameters
    ----------
    max_bytes : memory for the features of a group of classes, see `positives_curvature`.
    """
    for group in class_groups(labels, max_bytes // (weight.shape[1] * weight.itemsize)):
        gathered = gather(features, weight, np.concatenate(group), len(labels))
        first = 0
        for rows in group:
            yield rows, gathered[first : first + len(rows)]
            first += len(rows)


def class_groups(labels: Array, max_rows: int) -> Iterator[list[NDArray[np.int64]]]:
    """Yield the rows of classes with two or more images, in groups of at most ``max_rows``."""
    order, limits = _by_label(labels)
    group: list[NDArray[np.int64]] = []
    for rows in (order[lower:upper] for lower, upper in pairwise(limits)):
        if group and sum(map(len, group)) + len(rows) > max_rows:
            yield group
            group = []
        if len(rows) > 1:
            group.append(rows)
    if group:
        yield group
