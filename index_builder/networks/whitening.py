"""A last layer in closed form: features whitened by how images of one label differ."""

from __future__ import annotations

import torch
from torch import Tensor


def learned_whitening(features: Tensor, labels: Tensor, embedding_dim: int) -> Tensor:
    """Weight W (D, F) of a layer h = W φ that whitens the differences within labels.

    After Radenović et al. 2019, sec. 3.3: with C the covariance within labels, φ is divided by
    (C + λ I)^½, and the D directions in which whole images then vary most are kept. λ is the mean
    eigenvalue of C: with fewer images than features most eigenvalues are estimated as zero, and
    dividing by them would blow up noise. There is no centring: that the features of all images
    share a direction is itself a feature, and the cosine of images of labels that trained nothing
    is the better for it.

    Parameters
    ----------
    features : (N, F).
    labels : (N,) int64.
    embedding_dim : D ≤ F.

    Returns
    -------
    (D, F), in the dtype of ``features``; signs fixed, so that the same features give the same W.
    """
    if embedding_dim > features.shape[1]:
        raise ValueError(f"{embedding_dim=}, but there are {features.shape[1]} features")
    rows = features.double()
    _, codes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, codes, rows)
    within = rows - (sums / counts[:, None])[codes]
    covariance = within.T @ within / max(1, len(rows) - len(counts))
    eigenvalues, directions = torch.linalg.eigh(covariance)
    eigenvalues = eigenvalues.clamp_min(0)
    whitener = directions / (eigenvalues + eigenvalues.mean()).sqrt()
    whitened = (rows - rows.mean(0)) @ whitener
    _, principal = torch.linalg.eigh(whitened.T @ whitened)
    weight = (whitener @ principal.flip(1)[:, :embedding_dim]).T
    largest = weight.gather(1, weight.abs().argmax(1, keepdim=True))
    signed: Tensor = weight * largest.sign()
    return signed.to(features)
