"""The curvature of a minibatch against the straightforward way, for all six variants.

Sizes are those of the published Fashion-MNIST experiment: 64 images, 5,000 mined pairs, 9,216
features, an embedding of 3 dimensions; and once more with 128. The straightforward way writes the
diagonal terms of each pair, pairs x D x F entries, as the paper's equations stand; it already uses
that a linear layer's Jacobian is an outer product, so that no D x D F matrix is formed for a pair.
Both are given the same pairs, run on one thread, and must agree.

    python -m tests.benchmarks.bench_curvature
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split
from index_builder.posteriors.laplace.minibatches import pair_curvature

IMAGES, PAIRS, FEATURES = 64, 5000, 9216
DIMENSIONS = (3, 128)
PAIRS_AT_ONCE = 500
SLOW_ELEMENTS = 2 * 10**8
"""The straightforward way is timed on as many pairs as give this many entries, and scaled up."""


def straightforward(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    *,
    approximation: Approximation,
    split: Split,
) -> Curvature:
    """Sum the diagonal terms of every pair, (n, D, F) at a time."""
    if approximation == "positives":
        positive = targets > 0
        first, second, targets = first[positive], second[positive], targets[positive]
    features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    h = features @ torch.cat([weight, bias[:, None]], 1).T
    norms = h.norm(dim=1, keepdim=True)
    z = h / norms
    total = weight.new_zeros(weight.shape[0], features.shape[1])
    at_once = max(1, PAIRS_AT_ONCE * 3 // weight.shape[0])
    for i, j, y in zip(
        first.split(at_once), second.split(at_once), targets.split(at_once), strict=True
    ):
        cosine = (z[i] * z[j]).sum(1, keepdim=True)
        if split == "euclidean":
            own_i, own_j = 1 - z[i] ** 2, 1 - z[j] ** 2
        else:
            own_i = cosine + 2 * z[i] * z[j] - 3 * cosine * z[i] ** 2
            own_j = cosine + 2 * z[i] * z[j] - 3 * cosine * z[j] ** 2
        terms = (own_i / norms[i] ** 2)[:, :, None] * features[i, None] ** 2
        terms += (own_j / norms[j] ** 2)[:, :, None] * features[j, None] ** 2
        if approximation != "fixed":
            joint = 1 - z[i] ** 2 - z[j] ** 2 + cosine * z[i] * z[j]
            joint *= 2 / (norms[i] * norms[j])
            terms -= joint[:, :, None] * (features[i] * features[j])[:, None]
        total += (y[:, None, None] * terms).sum(0)
    return Curvature(total[:, :-1], total[:, -1])


def minibatch(dim: int) -> tuple[Tensor, ...]:
    """Features, layer, and as many random positive as negative pairs of ten classes."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(IMAGES, FEATURES, generator=generator).relu()
    weight = torch.randn(dim, FEATURES, generator=generator) / FEATURES**0.5
    bias = torch.randn(dim, generator=generator)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    i, j = torch.triu_indices(IMAGES, IMAGES, 1)
    same = labels[i] == labels[j]
    drawn = [
        kind[torch.randint(len(kind), (PAIRS // 2,), generator=generator)]
        for kind in (same.nonzero()[:, 0], (~same).nonzero()[:, 0])
    ]
    # Shuffled, so that any part of the pairs holds both kinds.
    pairs = torch.cat(drawn)[torch.randperm(PAIRS, generator=generator)]
    targets = torch.where(same[pairs], 2 / PAIRS, -2 / PAIRS)
    return features, weight, bias, i[pairs], j[pairs], targets


def seconds(call: Callable[[], object], repetitions: int) -> float:
    """Return the shortest of several runs."""
    times = []
    for _ in range(repetitions):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


@torch.no_grad()
def measure() -> dict[str, float]:
    """How many times faster, for each variant and size; `curvature_speedup` is the least.

    On one thread, because on a machine with other work threads wait for each other, and that says
    nothing about either way.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        variants = itertools.product(DIMENSIONS, get_args(Approximation), get_args(Split))
        results = {
            f"curvature_speedup_{approximation}_{split}_{dim}": speedup(dim, approximation, split)
            for dim, approximation, split in variants
        }
    finally:
        torch.set_num_threads(n_threads)
    return {"curvature_speedup": min(results.values()), **results}


def speedup(dim: int, approximation: Approximation, split: Split) -> float:
    """Time of the straightforward way over ours, for one variant; their results must agree."""
    features, weight, bias, *pairs = minibatch(dim)
    n_few = min(PAIRS, SLOW_ELEMENTS // (dim * FEATURES))
    few = [tensor[:n_few] for tensor in pairs]
    theirs, ours = (
        partial(way, features, weight, bias, approximation=approximation, split=split)
        for way in (straightforward, pair_curvature)
    )
    expected = theirs(*few).weight
    tolerance = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(ours(*few).weight, expected, rtol=0, atol=tolerance)
    slow = seconds(partial(theirs, *few), 2) * PAIRS / n_few
    return slow / seconds(partial(ours, *pairs), 10)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
