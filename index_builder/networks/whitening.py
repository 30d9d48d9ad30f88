"""A last layer in closed form: features whitened by how images of one label differ."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def learned_whitening(blocks: Iterable[Tensor], labels: Tensor, embedding_dim: int) -> Tensor:
    """Weight W (D, F) of a layer h = W φ that whitens the differences within labels.

    After Radenović et al. 2019, sec. 3.3: with C the covariance within labels, φ is divided by
    (C + λ I)^½, and the D directions in which whole images then vary most are kept. λ is the mean
    eigenvalue of C: with fewer images than features most eigenvalues are estimated as zero, and
    dividing by them would blow up noise. There is no centring: that the features of all images
    share a direction is itself a feature, and the cosine of images of labels that trained nothing
    is the better for it.

    Parameters
    ----------
    blocks : (n, F) features in row order; read once.
    labels : (N,) int64; some label has two images that differ.
    embedding_dim : D ≤ F.

    Returns
    -------
    (D, F), in the dtype of the features; the largest entry of each row is positive, so that the
    same features give the same W.
    """
    _, codes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums, products, example, first = None, None, None, 0
    for block in blocks:
        rows = block.double()
        if sums is None or products is None:
            example = block
            sums = rows.new_zeros(len(counts), rows.shape[1])
            products = rows.new_zeros(rows.shape[1], rows.shape[1])
        sums.index_add_(0, codes[first : first + len(rows)], rows)
        products.addmm_(rows.T, rows)
        first += len(rows)
    if sums is None or products is None or example is None or first != len(labels):
        raise ValueError(f"the blocks hold {first} rows, the labels {len(labels)}")
    if embedding_dim > sums.shape[1]:
        raise ValueError(f"{embedding_dim=}, but there are {sums.shape[1]} features")
    within = products - sums.T @ (sums / counts[:, None])
    mean = sums.sum(0) / first
    total = products - first * torch.outer(mean, mean)
    eigenvalues, directions = torch.linalg.eigh(within / max(1, first - len(counts)))
    eigenvalues = eigenvalues.clamp_min(0)
    whitener = directions / (eigenvalues + eigenvalues.mean()).sqrt()
    _, principal = torch.linalg.eigh(whitener.T @ total @ whitener)
    weight = (whitener @ principal.flip(1)[:, :embedding_dim]).T
    largest = weight.gather(1, weight.abs().argmax(1, keepdim=True))
    signed: Tensor = weight * largest.sign()
    return signed.to(example)
