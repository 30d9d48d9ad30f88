"""Dropout's moments against sampled dropout, as torch does it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from index_builder.networks.trunk import SmallCNN, dropout_masks
from index_builder.posteriors.baselines import DropoutPosterior
from index_builder.posteriors.stored import load_posterior

SHARE, N_FEATURES, DIM = 0.2, 600, 3
"""So many features that a pass is not far from the mean, where the moments are exact."""


@pytest.fixture
def posterior() -> DropoutPosterior:
    generator = torch.Generator().manual_seed(0)
    return DropoutPosterior(
        torch.randn(DIM, N_FEATURES, generator=generator) + torch.tensor([[1.0], [0.5], [-0.5]]),
        torch.randn(DIM, generator=generator),
        torch.tensor(SHARE),
        dropout_masks(4, (2, 5), SHARE, generator),
    )


def features_of(seed: int) -> Tensor:
    """Two images' features, above zero as those of a network are."""
    return torch.rand(2, N_FEATURES, generator=torch.Generator().manual_seed(seed)) + 0.2


def embeddings(posterior: DropoutPosterior, features: Tensor) -> Tensor:
    """(10000, 2, D) before normalisation, through torch's own dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        dropped = nn.functional.dropout(features.expand(10_000, -1, -1), SHARE, training=True)
    return dropped @ posterior.weight.T + posterior.bias


def directions(posterior: DropoutPosterior, features: Tensor) -> Tensor:
    return nn.functional.normalize(embeddings(posterior, features), dim=-1)


def test_the_moments_are_those_of_passes_without_end(posterior: DropoutPosterior) -> None:
    mean, variance = posterior.predict(features_of(1))
    passes = directions(posterior, features_of(1))
    torch.testing.assert_close(mean, passes.mean(0), rtol=0, atol=0.005)
    torch.testing.assert_close(variance, passes.var(0), rtol=0.1, atol=0)


def test_what_normalising_removes_is_not_counted(posterior: DropoutPosterior) -> None:
    """A last layer whose rows are alike: dropping features shortens the embedding, no more."""
    weight = posterior.weight[:1] + 0.01 * posterior.weight
    alike = DropoutPosterior(weight, torch.zeros(DIM), posterior.share, posterior.masks)
    _, variance = alike.predict(features_of(1))
    unnormalised = embeddings(alike, features_of(1))
    relative = unnormalised.var(0).sum(1) / unnormalised.mean(0).square().sum(1)
    assert (variance.sum(1) < 1e-3 * relative).all()


def test_passes_through_the_trunk_add_how_far_they_lie_apart(posterior: DropoutPosterior) -> None:
    passes = [features_of(seed) for seed in (3, 4, 5)]
    mean, variance = posterior.combine(passes)
    drawn = torch.cat([directions(posterior, features) for features in passes])
    torch.testing.assert_close(mean, drawn.mean(0), rtol=0, atol=0.005)
    torch.testing.assert_close(variance, drawn.var(0), rtol=0.1, atol=0)


def test_without_dropout_nothing_varies(posterior: DropoutPosterior) -> None:
    certain = DropoutPosterior(
        posterior.weight, posterior.bias, torch.tensor(0.0), posterior.masks[:0]
    )
    assert torch.equal(certain.predict(features_of(1))[1], torch.zeros(2, DIM))


def test_what_is_saved_is_loaded(posterior: DropoutPosterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = load_posterior(tmp_path / "posterior.safetensors")
    for name in ("weight", "bias", "share", "masks"):
        assert torch.equal(getattr(loaded, name), getattr(posterior, name))


def test_in_training_the_trunk_drops_what_a_mask_drops_and_otherwise_nothing() -> None:
    trunk = SmallCNN(SHARE, torch.Generator().manual_seed(4))
    images = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(5))
    trained = trunk.train()(images)
    mask = torch.rand(2, 32, 26, 26, generator=torch.Generator().manual_seed(4)) >= SHARE
    assert 0.19 < 1 - mask.double().mean() < 0.21
    hidden = torch.relu(trunk.layers[0](images.mean(1, keepdim=True)))
    oracle = trunk.layers[2:](hidden * mask / (1 - SHARE))
    torch.testing.assert_close(trained, oracle)
    (masked,) = trunk.masked_features(images, mask[None])
    torch.testing.assert_close(masked, oracle)
    whole = trunk.eval()(images)
    torch.testing.assert_close(whole, trunk.layers(images.mean(1, keepdim=True)))
    assert not torch.allclose(whole, trained, rtol=0.1)
