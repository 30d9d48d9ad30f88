from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from index_builder.posteriors.learned_variances import (
    UncertaintyModule,
    UncertaintyModulePosterior,
)
from index_builder.posteriors.stored import load_posterior


def test_every_image_begins_with_nearly_the_initial_variance() -> None:
    module = UncertaintyModule(6, 4, initial_variance=0.02)
    variance = module(torch.randn(50, 6))
    torch.testing.assert_close(variance, torch.full((50, 4), 0.02), rtol=1e-3, atol=0)
    assert variance.std() > 0


def test_it_is_the_papers_layers_with_one_scale_and_shift_for_all_dimensions() -> None:
    module = UncertaintyModule(6, 4).double()
    nn.init.constant_(module.scale, 0.8)
    nn.init.constant_(module.shift, -1.5)
    last = nn.BatchNorm1d(4)
    papers = nn.Sequential(
        nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), last
    ).double()
    papers[0].load_state_dict(module.hidden.state_dict())
    papers[3].load_state_dict(module.output.state_dict())
    nn.init.constant_(last.weight, 0.8)
    nn.init.constant_(last.bias, -1.5)
    features = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(module(features), papers(features).exp())
    assert not list(module.output_norm.parameters())


def test_no_image_makes_it_overflow_or_vanish() -> None:
    module = UncertaintyModule(6, 4).eval()
    nn.init.constant_(module.scale, 1e3)
    variance = module(1e6 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.isfinite(variance.square()).all()
    assert (variance > 0).all()


@pytest.mark.parametrize("unit_mean", [False, True])
def test_what_is_saved_is_loaded(unit_mean: bool, tmp_path: Path) -> None:
    module = UncertaintyModule(6, 4, initial_variance=0.3)
    module(torch.randn(20, 6))  # running statistics are saved as well
    posterior = UncertaintyModulePosterior(nn.Linear(6, 4), module, unit_mean=unit_mean)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = load_posterior(tmp_path / "posterior.safetensors")
    features = torch.randn(3, 6)
    for ours, theirs in zip(loaded.predict(features), posterior.predict(features), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours.requires_grad
    mean, _ = loaded.predict(features)
    expected = posterior.last_layer(features)
    if unit_mean:
        expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(mean, expected)


def test_beside_an_encoder_its_variances_add_up_to_a_half() -> None:
    encoder: Any = SimpleNamespace(last_layer=nn.Linear(3, 5), trunk=SimpleNamespace(n_features=3))
    module = UncertaintyModule.beside(encoder, torch.Generator().manual_seed(0))
    assert module.hidden.weight.shape == (5, 3)
    assert 5 * module.shift.exp().item() == pytest.approx(0.5)
