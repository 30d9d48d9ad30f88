from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from index_builder.posteriors.baselines import PointPosterior
from index_builder.posteriors.stored import load_posterior


def test_the_deterministic_baseline_is_its_layer_and_certain(tmp_path: Path) -> None:
    layer = nn.Linear(6, 4)
    PointPosterior.of(layer).save(tmp_path / "posterior.safetensors")
    features = torch.randn(3, 6)
    mean, variance = load_posterior(tmp_path / "posterior.safetensors").predict(features)
    torch.testing.assert_close(mean, layer(features))
    assert torch.equal(variance, torch.zeros(3, 4))
