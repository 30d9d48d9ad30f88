"""The predictive distribution in closed form against a hundred sampled last layers.

A last layer of 2,048 features and 2,048 dimensions, as of a ResNet-50. The sampled way runs the
layers one after another, as the authors' code does, and estimates mean, variance and concentration
from their normalised outputs; drawing the layers is not counted. Both run on one thread.

    python -m tests.benchmarks.bench_prediction
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from model_store.encoder.contract import Embeddings
from model_store.predictive import predict
from model_store.sphere import (
    base_noise,
    concentration_of,
    debiased_resultant_length,
    direction_and_concentration,
)

DIM = FEATURES = 2048
SAMPLES = 100
BATCHES = (1, 64)


def posterior() -> LastLayerPosterior:
    """A layer with the spread of a trained one: spherical variances of about a tenth."""
    generator = torch.Generator().manual_seed(0)
    scale = FEATURES**-0.5
    return LastLayerPosterior(
        torch.randn(DIM, FEATURES, generator=generator) * scale,
        torch.randn(DIM, generator=generator) * scale,
        (torch.rand(DIM, FEATURES, generator=generator) + 0.5) * (0.5 * scale) ** 2,
        (torch.rand(DIM, generator=generator) + 0.5) * (0.5 * scale) ** 2,
    )


def sampled(
    layers: list[tuple[Tensor, Tensor]], features: Tensor
) -> tuple[Tensor, Tensor, NDArray[np.float64]]:
    """Mean, variance and concentration by running each layer."""
    total = torch.zeros(len(features), DIM)
    squares, directions = torch.zeros_like(total), torch.zeros_like(total)
    for weight, bias in layers:
        embedding = torch.addmm(bias, features, weight.T)
        total += embedding
        squares += embedding.square()
        directions += torch.nn.functional.normalize(embedding)
    mean = total / len(layers)
    resultant = directions.norm(dim=1).double().numpy() / len(layers)
    length = debiased_resultant_length(resultant, len(layers))
    return mean, squares / len(layers) - mean.square(), concentration_of(length, DIM)


def closed_form(layer: LastLayerPosterior, features: Tensor) -> Embeddings:
    """Mean and variance: two products."""
    mean, variance = layer.predict(features)
    return Embeddings(mean.numpy(), variance.numpy(), np.empty((len(mean), 0), np.float32))


def with_concentration(layer: LastLayerPosterior, features: Tensor) -> NDArray[np.float64]:
    """Mean, variance and concentration in closed form."""
    embeddings = closed_form(layer, features)
    return direction_and_concentration(embeddings.mean, embeddings.variance)[1]


def with_samples(
    layer: LastLayerPosterior, features: Tensor, noise: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """The same, and a hundred draws of the embedding: what the service computes for a query."""
    return [
        one.samples(noise)
        for one in predict(closed_form(layer, features), np.full(len(features), np.nan))
    ]


def seconds(call: Callable[[], object], repetitions: int) -> float:
    """Return the shortest of several runs."""
    times = []
    for _ in range(repetitions):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def kronecker() -> KroneckerPosterior:
    """A Kronecker-factored posterior of the same layer, no direction left out: the dearest one."""
    layer, generator = posterior(), torch.Generator().manual_seed(2)
    square = torch.randn(FEATURES + 1, FEATURES + 1, generator=generator)
    return KroneckerPosterior(
        layer.weight_mean,
        layer.bias_mean,
        torch.rand(FEATURES + 1, generator=generator) + 0.5,
        torch.linalg.qr(square)[0],
        torch.rand(FEATURES + 1, generator=generator) + 0.5,
        torch.tensor(0.0),
        torch.eye(DIM),
    )


@torch.no_grad()
def kronecker_cost() -> float:
    """Time of a Kronecker-factored prediction over a diagonal one's, of one image."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        features = torch.randn(1, FEATURES, generator=torch.Generator().manual_seed(1)).relu()
        pair = kronecker(), posterior()
        times = [seconds(partial(one.predict, features), 50) for one in pair]
    finally:
        torch.set_num_threads(n_threads)
    return times[0] / times[1]


@torch.no_grad()
def measure() -> dict[str, float]:
    """How many times faster, for each batch size; the named ratios are the least."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layer, generator = posterior(), torch.Generator().manual_seed(1)
        # One after another, so that the draws do not need twice the memory of their result.
        layers = [
            (weights[0], biases[0])
            for weights, biases in (layer.sample(1, generator) for _ in range(SAMPLES))
        ]
        noise = base_noise("benchmark", SAMPLES, DIM)
        results: dict[str, float] = {}
        for size in BATCHES:
            features = torch.randn(size, FEATURES, generator=generator).relu()
            mean, variance, concentration = sampled(layers, features)
            embeddings = closed_form(layer, features)
            # A hundred samples give a mean to a tenth of a deviation, the rest to some per cent.
            gap = (embeddings.mean - mean.numpy()) / embeddings.variance**0.5
            assert abs(float((gap**2).mean()) * SAMPLES - 1) < 0.2
            np.testing.assert_allclose(embeddings.variance.mean(1), variance.mean(1), rtol=0.1)
            np.testing.assert_allclose(with_concentration(layer, features), concentration, rtol=0.1)
            slow = seconds(partial(sampled, layers, features), 3)
            fast = seconds(partial(with_concentration, layer, features), 20)
            drawn = seconds(partial(with_samples, layer, features, noise), 10)
            results[f"predictive_speedup_{size}"] = slow / fast
            results[f"sampled_prediction_speedup_{size}"] = slow / drawn
    finally:
        torch.set_num_threads(n_threads)
    for name in ("predictive_speedup", "sampled_prediction_speedup"):
        results[name] = min(results[f"{name}_{size}"] for size in BATCHES)
    results["kron_prediction_cost"] = kronecker_cost()
    return results


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
