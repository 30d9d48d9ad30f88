"""Members trained apart, in one space."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy.stats import ortho_group
from torch import Tensor, nn
from torch.nn.functional import pdist

from index_builder.posteriors.baselines import EnsemblePosterior, fit_ensemble
from index_builder.posteriors.stored import load_posterior

N_FEATURES, DIM = 9, 4


def layers_and_features(noise: float) -> tuple[list[nn.Linear], list[Tensor]]:
    """Three members that are one and the same, but for a turn of each, and ``noise``."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(DIM, N_FEATURES, generator=generator)
    features = torch.randn(60, N_FEATURES, generator=generator)
    layers = []
    for seed in range(3):
        layer = nn.Linear(N_FEATURES, DIM)
        turn = torch.from_numpy(ortho_group.rvs(DIM, random_state=seed)).float()
        own = weight + noise * torch.randn(DIM, N_FEATURES, generator=generator)
        with torch.no_grad():
            layer.weight.copy_(turn @ own)
            layer.bias.copy_(turn @ torch.arange(DIM).float())
        layers.append(layer)
    return layers, [features] * 3


def test_members_that_differ_by_a_turn_agree_wholly() -> None:
    layers, features = layers_and_features(noise=0.0)
    fitted = fit_ensemble(layers, features)
    mean, variance = fitted.posterior.predict(torch.cat(features, dim=1))
    alone = nn.functional.normalize(layers[0](features[0]))
    torch.testing.assert_close(mean, alone, rtol=0, atol=1e-5)
    assert variance.max() < 1e-9
    before, after = zip(*fitted.agreement, strict=True)
    assert max(before[1:]) < 0.9  # taken as they are they would contradict each other
    assert min(after) == pytest.approx(1)


def test_turning_changes_no_distance_within_a_member() -> None:
    layers, features = layers_and_features(noise=0.5)
    posterior = fit_ensemble(layers, features).posterior
    for layer, weight, bias in zip(layers, posterior.weight, posterior.bias, strict=True):
        turned, own = features[0] @ weight.T + bias, layer(features[0])
        torch.testing.assert_close(pdist(turned), pdist(own))
    assert torch.equal(posterior.weight[0], layers[0].weight)


def test_the_moments_are_those_of_the_members_directions() -> None:
    layers, features = layers_and_features(noise=0.5)
    posterior = fit_ensemble(layers, features).posterior
    mean, variance = posterior.predict(torch.cat(features, dim=1))
    unit = torch.stack(
        [
            nn.functional.normalize(features[0] @ weight.T + bias)
            for weight, bias in zip(posterior.weight, posterior.bias, strict=True)
        ]
    )
    torch.testing.assert_close(mean, unit.mean(0))
    torch.testing.assert_close(variance, unit.var(0, correction=0))
    # So the mean resultant length that is served, ‖m‖ / √(‖m‖² + Σ v), is that of the members.
    length = mean.norm(dim=1)
    served = length / (length.square() + variance.sum(1)).sqrt()
    torch.testing.assert_close(served, length)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    posterior = EnsemblePosterior(torch.randn(2, 3, 5), torch.randn(2, 3))
    path = tmp_path / "posterior.safetensors"
    posterior.save(path)
    loaded = load_posterior(path)
    assert isinstance(loaded, EnsemblePosterior)
    assert torch.equal(loaded.weight, posterior.weight)
    assert torch.equal(loaded.bias, posterior.bias)
