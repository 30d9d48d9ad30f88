from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import ks_2samp

from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.stored import load_posterior
from model_store.encoder.contract import Embeddings
from model_store.predictive import predict
from model_store.sphere import base_noise, unit_direction


@pytest.fixture
def posterior() -> LastLayerPosterior:
    generator = torch.Generator().manual_seed(3)
    return LastLayerPosterior(
        torch.randn(3, 5, generator=generator),
        torch.randn(3, generator=generator),
        torch.rand(3, 5, generator=generator) + 0.1,
        torch.rand(3, generator=generator) + 0.1,
    )


def test_prediction_equals_sampled_layers(posterior: LastLayerPosterior) -> None:
    features = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    n_samples = 200_000
    weights, biases = posterior.sample(n_samples, torch.Generator().manual_seed(1))
    embeddings = torch.einsum("sdf,bf->sbd", weights, features) + biases[:, None]
    mean, variance = posterior.predict(features)
    standard_error = (variance / n_samples).sqrt()
    assert float(((embeddings.mean(0) - mean) / standard_error).abs().max()) < 4
    relative = embeddings.var(0) / variance - 1
    assert float(relative.abs().max()) < 4 * (2 / n_samples) ** 0.5


def test_samples_follow_the_generator(posterior: LastLayerPosterior) -> None:
    first, again, other = (
        posterior.sample(2, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_gradients_reach_the_mean_through_samples(posterior: LastLayerPosterior) -> None:
    mean = posterior.weight_mean.clone().requires_grad_()
    layer = LastLayerPosterior(
        mean, posterior.bias_mean, posterior.weight_variance, posterior.bias_variance
    )
    weights, _ = layer.sample(7, torch.Generator().manual_seed(0))
    weights.sum().backward()
    assert mean.grad is not None
    torch.testing.assert_close(mean.grad, torch.full((3, 5), 7.0))


def test_what_is_saved_is_loaded(posterior: LastLayerPosterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = load_posterior(tmp_path / "posterior.safetensors")
    for name in ("weight_mean", "bias_mean", "weight_variance", "bias_variance"):
        assert torch.equal(getattr(loaded, name), getattr(posterior, name))


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    save_file({"weight_mean": torch.ones(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="of format '', wanted one of last-layer-posterior/1"):
        load_posterior(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_variance": torch.ones(5, 3)}, "both must be"),
        ({"weight_mean": torch.ones(15), "weight_variance": torch.ones(15)}, "both must be"),
        ({"bias_variance": torch.ones(2)}, r"wanted \(3,\)"),
        ({"bias_mean": torch.ones(2)}, r"wanted \(3,\)"),
        ({"bias_mean": torch.ones(3, 5)}, r"wanted \(3,\)"),
        ({"weight_variance": torch.zeros(3, 5)}, "strictly positive"),
        ({"bias_variance": torch.tensor([1.0, 0.0, 1.0])}, "strictly positive"),
        ({"weight_variance": torch.full((3, 5), torch.inf)}, "weight_variance must be finite"),
        ({"bias_mean": torch.tensor([0.0, float("nan"), 0.0])}, "bias_mean must be finite"),
    ],
)
def test_what_is_no_posterior_is_refused(change: dict[str, torch.Tensor], message: str) -> None:
    tensors = {
        "weight_mean": torch.zeros(3, 5),
        "bias_mean": torch.zeros(3),
        "weight_variance": torch.ones(3, 5),
        "bias_variance": torch.ones(3),
    }
    with pytest.raises(ValueError, match=message):
        LastLayerPosterior(**{**tensors, **change})


def test_predictive_samples_are_distributed_like_normalised_outputs_of_sampled_layers() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = LastLayerPosterior(
        torch.randn(6, 20, generator=generator),
        torch.randn(6, generator=generator),
        torch.rand(6, 20, generator=generator) * 0.3 + 0.01,
        torch.rand(6, generator=generator) + 0.01,
    )
    features = torch.rand(1, 20, generator=generator)
    n = 20_000
    weights, biases = layer.sample(n, generator)
    theirs = torch.nn.functional.normalize(weights @ features[0] + biases).numpy()
    mean, variance = (value.numpy() for value in layer.predict(features))
    embedding = Embeddings(mean, variance, np.empty((1, 0), np.float32))
    (predictive,) = predict(embedding, np.array([np.nan]))
    ours = unit_direction(predictive.samples(base_noise("test", n, 6)))
    error = theirs.std(0) / n**0.5
    assert (abs(ours.mean(0) - theirs.mean(0)) < 6 * error).all()
    np.testing.assert_allclose(np.cov(ours.T), np.cov(theirs.T), atol=0.02 * theirs.var())
    for axis in range(6):  # and in distribution, not in moments alone
        assert ks_2samp(ours[:, axis], theirs[:, axis]).pvalue > 1e-3
    resultant = np.linalg.norm(theirs.mean(0, dtype=np.float64))
    assert 1 - predictive.spherical_variance == pytest.approx(resultant, abs=0.02)
