"""The length of an embedding as concentration, against the core and through its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from index_builder.posteriors.baselines import EmbeddingNormPosterior, mean_over_concentration
from index_builder.posteriors.stored import load_posterior
from model_store import sphere

LENGTHS = torch.tensor([1e-3, 0.4, 3.0, 25.0, 180.0, 4e3], dtype=torch.float64)


def posterior(dim: int, temperature: float = 1.0) -> EmbeddingNormPosterior:
    """Features are embeddings."""
    return EmbeddingNormPosterior(
        torch.eye(dim, dtype=torch.float64),
        torch.zeros(dim, dtype=torch.float64),
        torch.tensor(temperature),
    )


def of_lengths(dim: int) -> Tensor:
    drawn = torch.randn(len(LENGTHS), dim, generator=torch.Generator().manual_seed(0)).double()
    return torch.nn.functional.normalize(drawn) * LENGTHS[:, None]


@pytest.mark.parametrize("dim", [2, 3, 17, 50, 51, 128, 2048])
def test_the_ratio_is_the_cores(dim: int) -> None:
    kappa = LENGTHS.numpy()
    expected = sphere.mean_resultant_length(kappa, dim) / kappa
    np.testing.assert_allclose(mean_over_concentration(LENGTHS, dim).numpy(), expected, rtol=1e-13)
    at_zero = mean_over_concentration(torch.zeros(1, dtype=torch.float64), dim)
    assert at_zero.item() == pytest.approx(1 / dim, rel=1e-13)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("dim", [3, 128])
def test_the_length_over_the_temperature_is_what_is_served_as_concentration(
    dim: int, temperature: float
) -> None:
    mean, variance = posterior(dim, temperature).predict(of_lengths(dim))
    _, kappa = sphere.direction_and_concentration(mean.numpy(), variance.numpy())
    np.testing.assert_allclose(kappa, LENGTHS.numpy() / temperature, rtol=1e-6)
    torch.testing.assert_close(mean, of_lengths(dim))


def test_no_length_is_no_direction_but_finite() -> None:
    mean, variance = posterior(8, 2.0).predict(torch.zeros(1, 8, dtype=torch.float64))
    assert not mean.any()
    assert variance[0].tolist() == pytest.approx([8 * 2.0**2] * 8)


def test_a_longer_embedding_is_a_surer_one() -> None:
    mean, variance = posterior(16).predict(of_lengths(16))
    spread = sphere.spherical_variance(mean.numpy(), variance.numpy())
    assert (np.diff(spread) < 0).all()


def test_the_file_gives_it_back(tmp_path: Path) -> None:
    kept = EmbeddingNormPosterior.of(torch.nn.Linear(7, 4)).at(0.3)
    kept.save(tmp_path / "posterior.safetensors")
    again = load_posterior(tmp_path / "posterior.safetensors")
    features = torch.rand(3, 7)
    for one, other in zip(kept.predict(features), again.predict(features), strict=True):
        assert torch.equal(one, other)


def test_its_temperature_is_one_until_another_is_fitted() -> None:
    layer = torch.nn.Linear(3, 2)
    assert EmbeddingNormPosterior.of(layer).temperature.item() == 1
    assert EmbeddingNormPosterior.of(layer).at(2.5).temperature.item() == 2.5
