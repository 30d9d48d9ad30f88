from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from index_builder.posteriors.learned_variances import VarianceHead, VarianceHeadPosterior, softplus
from index_builder.posteriors.stored import load_posterior


def test_softplus_keeps_its_digits_where_it_is_small() -> None:
    values = torch.linspace(-40, 40, 4001)
    exact = np.log1p(np.exp(values.double().numpy()))
    np.testing.assert_allclose(softplus(values).numpy(), exact, rtol=3e-6)
    values.requires_grad_()
    softplus(values).sum().backward()
    torch.testing.assert_close(values.grad, torch.sigmoid(values.detach()), rtol=1e-5, atol=0)


@pytest.mark.parametrize("isotropic", [False, True])
def test_every_image_begins_with_the_initial_variance(isotropic: bool) -> None:
    head = VarianceHead(6, 4, isotropic=isotropic, initial_variance=0.02)
    variance = head(torch.randn(5, 6))
    torch.testing.assert_close(variance, torch.full((5, 4), 0.02), rtol=1e-5, atol=1e-7)
    assert head.layer.out_features == (1 if isotropic else 4)


@pytest.mark.parametrize("unit_mean", [False, True])
@pytest.mark.parametrize("isotropic", [False, True])
def test_what_is_saved_is_loaded(isotropic: bool, unit_mean: bool, tmp_path: Path) -> None:
    head = VarianceHead(6, 4, isotropic=isotropic)
    nn.init.normal_(head.layer.weight, generator=torch.Generator().manual_seed(0))
    layer = nn.Linear(6, 4)
    posterior = VarianceHeadPosterior(layer, head, unit_mean=unit_mean)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = load_posterior(tmp_path / "posterior.safetensors")
    features = torch.randn(3, 6)
    for ours, theirs in zip(loaded.predict(features), posterior.predict(features), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours.requires_grad
    mean, _ = loaded.predict(features)
    raw = layer(features).detach()
    expected = raw / raw.norm(dim=1, keepdim=True) if unit_mean else raw
    torch.testing.assert_close(mean, expected)
