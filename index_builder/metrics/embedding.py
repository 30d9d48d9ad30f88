"""Metrics of an embedding: ranked lists, and the structure of the whole embedding.

``matches`` (B, n) is true for the true matches in each query's list; the nearest item is first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

Bools = NDArray[np.bool_]
Counts = NDArray[np.integer[Any]]


def recall_at_k(matches: Bools, k: int) -> float:
    """Return the share of queries with a true match in the first k results."""
    return float(matches[:, :k].any(axis=1).mean())


def map_at_k(matches: Bools, n_relevant: Counts, k: int) -> float | None:
    """Mean over queries of AP@k = Σ_{i ≤ k} P(i) · rel(i) / min(R, k).

    P(i) is the share of true matches in the first i results. R is the number of true matches in the
    gallery. Queries without a match are left out. The code of the Laplace metric-learning paper has
    the same definition, except that such queries count as 1.

    Parameters
    ----------
    matches : (B, ≥ min(k, items)).
    n_relevant : (B,) R of each query.
    """
    return _mean_precision(matches[:, :k], n_relevant, np.minimum(n_relevant, k))


def map_at_r(matches: Bools, n_relevant: Counts) -> float | None:
    """Mean over queries of MAP@R = Σ_{i ≤ R} P(i) · rel(i) / R (Musgrave et al. 2020).

    Parameters
    ----------
    matches : (B, ≥ the largest R).
    n_relevant : (B,) R of each query; queries with R = 0 are left out.
    """
    within = np.arange(matches.shape[1]) < n_relevant[:, None]
    return _mean_precision(matches & within, n_relevant, n_relevant)


def average_precision(matches: Bools) -> float | None:
    """Mean over queries of AP = Σ_i P(i) · rel(i) / R, over whole rankings.

    Parameters
    ----------
    matches : (B, n) over all n items; queries without a match are left out.
    """
    n_relevant = matches.sum(axis=1)
    return _mean_precision(matches, n_relevant, n_relevant)


def _mean_precision(matches: Bools, n_relevant: Counts, divisor: Counts) -> float | None:
    """Return the mean of Σ_i P(i) · rel(i) / divisor over queries with R > 0, or None."""
    has = n_relevant > 0
    if not has.any():
        return None
    hits = matches[has]
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(axis=1) / divisor[has]).mean())


MAX_PER_LABEL = 500
"""Maximum number of items of a label for `cluster_diversity`; 500 items form 125,000 pairs."""

MAX_FOR_ENTROPY = 2_000
"""Maximum number of vectors for `mean_nn_entropy`; 2,000 vectors form two million pairs."""

Vectors = NDArray[np.floating[Any]]
Codes = NDArray[np.integer[Any]]


def normalised_mutual_information(vectors: Vectors, label_codes: Codes, seed: int) -> float | None:
    """Return the normalised mutual information of labels and k-means clusters.

    The value is 2 I(label; cluster) / (H(label) + H(cluster)), in [0, 1]. There are as many
    clusters as labels.

    Parameters
    ----------
    vectors : (N, D) unit embeddings.
    label_codes : (N,).
    seed : seed of k-means.

    Returns
    -------
    The value; None if there are fewer than two labels.
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415 - slow
    from sklearn.metrics import normalized_mutual_info_score  # noqa: PLC0415 - slow

    n_labels = len(np.unique(label_codes))
    if n_labels < 2:
        return None
    clusters = KMeans(n_labels, n_init=1, random_state=seed).fit_predict(vectors)
    return float(normalized_mutual_info_score(label_codes, clusters))


def feature_diversity(vectors: Vectors) -> float:
    """Compute how evenly embeddings use their dimensions: exp(−KL(uniform ‖ spectrum)).

    The spectrum is the singular values of ``vectors`` (N, D), divided by their sum. Roth et al.
    2020 call the divergence spectral decay; Kirchhof et al. 2022, appendix L, call it feature
    diversity. The result is 1 if all singular values are equal, and 0 if one of them is 0.
    """
    values = np.linalg.svd(np.asarray(vectors, dtype=np.float64), compute_uv=False)
    if len(values) < vectors.shape[1] or values[-1] <= np.finfo(np.float64).eps * values[0]:
        return 0.0
    spectrum = values / values.sum()
    divergence = -np.log(spectrum * len(spectrum)).mean()
    return float(np.exp(-divergence))


def mean_nn_entropy(vectors: Vectors) -> float | None:
    """Estimate the entropy of an embedding up to a constant: D/(N(N − 1)) Σ_{i≠j} log d_ij².

    This is the estimator of Faivishevsky & Goldberger (2010), in the form of Boudiaf et al. 2020,
    Eq. 6. The terms i = j are left out, because they are −∞.

    Parameters
    ----------
    vectors : (N, D).

    Returns
    -------
    The entropy in nats; None if there are fewer than two vectors, or if two vectors are equal.
    """
    distances = pdist(vectors[:MAX_FOR_ENTROPY].astype(np.float64), "sqeuclidean")
    if not len(distances) or not distances.all():
        return None
    return float(vectors.shape[1] * np.log(distances).mean())


def cluster_diversity(vectors: Vectors, label_codes: Codes) -> float | None:
    """Return the variance of the distances between items of one label, averaged over the labels.

    The metric is from Kirchhof et al. 2022, appendix L. At most the first `MAX_PER_LABEL` items of
    a label are used.

    Parameters
    ----------
    vectors : (N, D).
    label_codes : (N,); labels with a single item are left out.

    Returns
    -------
    The variance in squared embedding units; None if no label has two items.
    """
    variances = []
    for code in np.unique(label_codes):
        members = np.flatnonzero(label_codes == code)[:MAX_PER_LABEL]
        if len(members) > 1:
            variances.append(pdist(vectors[members].astype(np.float64)).var())
    return float(np.mean(variances)) if variances else None
