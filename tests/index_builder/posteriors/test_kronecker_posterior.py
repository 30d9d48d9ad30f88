from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.stored import load_posterior
from model_store.encoder.contract import Embeddings
from model_store.predictive import Pairs, predict


def tensors(rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "weight_mean": drawn(3, 4),
        "bias_mean": drawn(3),
        "feature_scale": drawn(5).abs() + 0.2,
        "directions": torch.linalg.qr(drawn(5, 5))[0][:, :rank].contiguous(),
        "direction_variance": drawn(rank).abs() + 0.1,
        "rest_variance": torch.tensor(0.0 if rank == 5 else 2.0, dtype=torch.float64),
        "output_factor": drawn(3, 3),
    }


@pytest.fixture(params=[2, 5])
def posterior(request: pytest.FixtureRequest) -> KroneckerPosterior:
    return KroneckerPosterior(**tensors(request.param))


def test_prediction_equals_sampled_layers(posterior: KroneckerPosterior) -> None:
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    weights, biases = posterior.sample(100_000, generator)
    embeddings = torch.einsum("bf,sdf->bsd", features, weights) + biases
    mean, variance = posterior.predict(features)
    error = variance.sqrt() / 100_000**0.5
    assert float(((embeddings.mean(1) - mean) / error).abs().max()) < 4.5
    assert float((embeddings.var(1) / variance - 1).abs().max()) < 0.02
    # Outputs of one image move together as the output factor says, not each for itself.
    factor = posterior.output_factor
    together = (embeddings - mean[:, None]).mT @ (embeddings - mean[:, None]) / 100_000
    expected = posterior.feature_variance(features)[:, None, None] * (factor @ factor.T)
    torch.testing.assert_close(together, expected, rtol=0, atol=0.03 * float(expected.abs().max()))


def test_of_all_directions_there_is_no_rest() -> None:
    complete = tensors(5)
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    expected = KroneckerPosterior(**complete).feature_variance(features)
    complete["rest_variance"] = torch.tensor(1e30, dtype=torch.float64)
    assert torch.equal(KroneckerPosterior(**complete).feature_variance(features), expected)


def test_the_generator_alone_decides_what_is_drawn(posterior: KroneckerPosterior) -> None:
    once, again = (posterior.sample(2, torch.Generator().manual_seed(3)) for _ in range(2))
    torch.testing.assert_close(once, again, rtol=0, atol=0)


def test_gradients_reach_the_mean_through_samples() -> None:
    values = tensors(2)
    values["weight_mean"].requires_grad_()
    KroneckerPosterior(**values).sample(2, torch.Generator())[0].sum().backward()
    torch.testing.assert_close(values["weight_mean"].grad, torch.full((3, 4), 2.0).double())


def test_a_temperature_multiplies_variances(posterior: KroneckerPosterior) -> None:
    features = torch.ones(2, 4, dtype=torch.float64)
    mean, variance = posterior.predict(features)
    warmer_mean, warmer = posterior.tempered(3.0).predict(features)
    torch.testing.assert_close(warmer, 3 * variance)
    assert torch.equal(warmer_mean, mean)


def test_what_is_saved_is_loaded(posterior: KroneckerPosterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = load_posterior(tmp_path / "posterior.safetensors")
    features = torch.ones(2, 4, dtype=torch.float64)
    for ours, theirs in zip(posterior.predict(features), loaded.predict(features), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directions": torch.ones(4, 2)}, "directions is"),
        ({"output_factor": torch.ones(3, 2)}, "output_factor is"),
        ({"bias_mean": torch.ones(4)}, "bias_mean is"),
        ({"feature_scale": torch.ones(4)}, "feature_scale is"),
        ({"direction_variance": torch.ones(3)}, "direction_variance is"),
        ({"rest_variance": torch.ones(1)}, "rest_variance is"),
        ({"direction_variance": torch.zeros(2)}, "strictly positive"),
        ({"direction_variance": torch.tensor([1.0, -1.0])}, "strictly positive"),
        ({"rest_variance": torch.tensor(0.0)}, "strictly positive"),
        ({"bias_mean": torch.full((3,), float("nan"))}, "bias_mean must be finite"),
    ],
)
def test_impossible_tensors_are_refused(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KroneckerPosterior(**{**tensors(2), **change})


def test_similarity_std_is_that_of_sampled_layers() -> None:
    """Of a pair under one posterior, with the correlation that its features have there."""
    parts = tensors(2)
    parts["output_factor"] = parts["output_factor"].diagonal().abs().diag()
    posterior = KroneckerPosterior(**parts).tempered(1e-4)
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(4, generator=generator, dtype=torch.float64)
    features = features + 0.4 * torch.randn(5, 4, generator=generator, dtype=torch.float64)
    weights, biases = posterior.sample(100_000, generator)
    layers = torch.einsum("bf,sdf->sbd", features, weights) + biases[:, None]
    drawn = torch.nn.functional.normalize(layers, dim=2)
    cosines = (drawn[:, :1] * drawn[:, 1:]).sum(2).numpy()

    means, variances = (part.numpy() for part in posterior.predict(features))
    embeddings = Embeddings(
        means.astype(np.float32), variances.astype(np.float32), np.empty((5, 0), np.float32)
    )
    query = predict(embeddings, np.zeros(5))[0]
    items = embeddings.directions[1:]
    norms = np.linalg.norm(means, axis=1)
    alone = posterior.feature_variance(features).numpy()
    together = posterior.products(features)[0, 1:].numpy()
    correlations = together / np.sqrt(alone[0] * alone[1:])
    total = (variances.sum(axis=1) / norms**2)[1:].astype(np.float32)
    found = Pairs.of(query, items, (items @ query.direction).astype(float), total, correlations)
    np.testing.assert_allclose(found.std, cosines.std(axis=0), rtol=0.02)


def test_products_have_the_feature_variance_on_their_diagonal(
    posterior: KroneckerPosterior,
) -> None:
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    products = posterior.products(features)
    torch.testing.assert_close(products.diagonal(), posterior.feature_variance(features))
    torch.testing.assert_close(products, products.T)
