"""Metrics of the structure of a whole embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

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
