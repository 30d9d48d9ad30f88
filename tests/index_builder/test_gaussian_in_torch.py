"""Diagonal Gaussian algebra: the same eight lines give torch what they give NumPy."""

from __future__ import annotations

import numpy as np
import torch

from model_store.gaussian import (
    DiagonalGaussian,
    squared_distance_moments,
    triplet_margin_moments,
)


def test_torch_gives_what_numpy_gives_and_gradients() -> None:
    rng = np.random.default_rng(6)
    arrays_ = [
        DiagonalGaussian(rng.standard_normal((4, 3)), rng.exponential(size=(4, 3)))
        for _ in range(3)
    ]
    tensors = [
        DiagonalGaussian(*(torch.tensor(part, requires_grad=True) for part in item))
        for item in arrays_
    ]
    expected = triplet_margin_moments(*arrays_)
    actual = triplet_margin_moments(*tensors)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-12)

    def moments(*parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return triplet_margin_moments(*(DiagonalGaussian(*parts[i : i + 2]) for i in (0, 2, 4)))

    assert torch.autograd.gradcheck(moments, [part for item in tensors for part in item])
    distance = squared_distance_moments(arrays_[0].mean, arrays_[1].variance)
    torch_distance = squared_distance_moments(tensors[0].mean, tensors[1].variance)
    for ours, theirs in zip(torch_distance, distance, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-12)
