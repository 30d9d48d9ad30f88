from __future__ import annotations

import torch

from index_builder.networks.trunk import AveragePooling, GeneralisedMeanPooling

MAPS = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_average_is_the_generalised_mean_with_exponent_one() -> None:
    gem = GeneralisedMeanPooling(exponent=1.0).double()
    torch.testing.assert_close(gem(MAPS), AveragePooling()(MAPS))
    torch.testing.assert_close(AveragePooling()(MAPS), MAPS.flatten(2).mean(2))


def test_a_large_exponent_is_nearly_the_maximum() -> None:
    pooled = GeneralisedMeanPooling(exponent=400.0).double()(MAPS)
    torch.testing.assert_close(pooled, MAPS.flatten(2).amax(2), rtol=0.01, atol=0)


def test_the_exponent_is_learned_even_where_a_map_is_empty() -> None:
    gem = GeneralisedMeanPooling()
    gem(torch.relu(MAPS.float() - 0.9)).sum().backward()
    assert gem.exponent.grad is not None
    assert torch.isfinite(gem.exponent.grad)
    assert gem.exponent.grad != 0
