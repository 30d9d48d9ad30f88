"""Builds that train nothing: the same posterior and the same graph with torch and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from index_builder.arrays import to_numpy
from index_builder.pipeline.graphs import kronecker_head, operator_version
from index_builder.posteriors.laplace.curvature import Approximation, Split, Structure
from index_builder.posteriors.laplace.fit import LaplaceFit, fit_laplace
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from model_store.encoder.contract import OUTPUT_NAMES
from model_store.encoder.onnx import open_graph
from tests.support.narrowing import instance_of

N_IMAGES, N_FEATURES, DIM, N_LABELS = 60, 20, 6, 7


def data(dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    """Features, labels, weight and bias."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, N_LABELS, N_IMAGES)
    features = generator.normal(size=(N_IMAGES, N_FEATURES)) + labels[:, None] % 3
    weight = generator.normal(size=(DIM, N_FEATURES))
    found = features, weight, 0.1 * generator.normal(size=DIM)
    features, weight, bias = (one.astype(dtype) for one in found)
    return features, labels, weight, bias


@pytest.mark.parametrize("structure", get_args(Structure))
@pytest.mark.parametrize("approximation", get_args(Approximation))
@pytest.mark.parametrize("split", get_args(Split))
def test_fit_of_arrays_and_of_tensors_is_the_same(
    structure: Structure, approximation: Approximation, split: Split
) -> None:
    features, labels, weight, bias = data(np.float64)
    options: dict[str, Any] = {"structure": structure, "approximation": approximation}
    options |= {"split": split, "margin": 1.1, "seed": 0}

    def fitted(as_input: Any) -> LaplaceFit:
        given = [as_input(one) for one in (labels, weight, bias)]
        return fit_laplace(lambda: [as_input(features)], *given, **options)

    arrays, tensors = fitted(np.asarray), fitted(torch.from_numpy)
    assert isinstance(arrays.posterior.weight_mean, np.ndarray)
    assert isinstance(tensors.posterior.weight_mean, torch.Tensor)
    assert arrays.prior_precision == pytest.approx(tensors.prior_precision)
    assert arrays.log_marginal_likelihood == pytest.approx(tensors.log_marginal_likelihood)
    ours = arrays.posterior.predict(features)
    theirs = tensors.posterior.predict(torch.from_numpy(features))
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, to_numpy(wanted), rtol=1e-8)


@pytest.fixture(params=[True, False], ids=["some directions", "all directions"])
def posterior(request: pytest.FixtureRequest) -> KroneckerPosterior:
    """A posterior that keeps few or all directions of its features."""
    features, labels, weight, bias = data(np.float32)
    prior = 30.0 if request.param else 1e-6
    fit = fit_laplace(lambda: [features], labels, weight, bias, margin=1.1, prior_precision=prior)
    found = instance_of(KroneckerPosterior, fit.posterior)
    kept = found.directions.shape[1]
    assert kept > 0
    assert (kept < N_FEATURES + 1) == request.param
    return found


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
@pytest.mark.parametrize("n_images", [1, 2, 9])
def test_head_computes_what_the_posterior_predicts(
    posterior: KroneckerPosterior, opset: int, n_images: int
) -> None:
    graph = kronecker_head(posterior, opset)
    assert operator_version(graph) == opset
    session = open_graph(graph.SerializeToString(), "cpu", threads=1)
    features = data(np.float32)[0][:n_images]
    found = session.run(list(OUTPUT_NAMES[:2]), {session.get_inputs()[0].name: features})
    for ours, wanted in zip(found, posterior.predict(features), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=1e-5 * np.abs(wanted).max())


def test_head_gives_an_image_the_same_bits_in_any_batch(posterior: KroneckerPosterior) -> None:
    session = open_graph(kronecker_head(posterior, 18).SerializeToString(), "cpu", threads=1)
    features = data(np.float32)[0]
    name = session.get_inputs()[0].name
    whole = session.run(list(OUTPUT_NAMES[1:2]), {name: features})[0]
    alone = [session.run(list(OUTPUT_NAMES[1:2]), {name: features[i : i + 1]})[0] for i in range(9)]
    np.testing.assert_array_equal(np.concatenate(alone), whole[:9])


def test_saved_posterior_is_loaded_with_the_same_bits(
    posterior: KroneckerPosterior, tmp_path: Path
) -> None:
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = KroneckerPosterior.load(tmp_path / "posterior.safetensors")
    np.testing.assert_array_equal(loaded.directions, posterior.directions)
    assert loaded.rest_variance == posterior.rest_variance
