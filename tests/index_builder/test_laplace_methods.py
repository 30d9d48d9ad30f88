"""The Laplace methods do what their configuration says, with what training has left them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from index_builder.configuration.posterior import LaplaceConfig, OnlineLaplaceConfig
from index_builder.methods import laplace
from index_builder.methods.laplace import OnlineLaplace, PostHocLaplace
from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.fit import LaplaceFit, PriorSearch, laplace_of_curvature
from index_builder.posteriors.laplace.held_out import HeldOut
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from model_store.errors import CalibrationError
from tests.support.narrowing import instance_of

N_IMAGES = 50
WEIGHT, BIAS = (
    np.random.default_rng(0).random(shape, dtype=np.float32) for shape in ((3, 4), (3,))
)
CONFIG: Any = SimpleNamespace(training=SimpleNamespace(margin=0.7), seed=3)


@pytest.fixture
def trained() -> Any:
    layer = SimpleNamespace(weight=WEIGHT, bias=BIAS)
    learned = {"weight": torch.from_numpy(100 * WEIGHT), "bias": torch.from_numpy(100 * BIAS)}
    return SimpleNamespace(linear=layer, learned=learned)


def test_the_curvature_of_training_is_of_all_its_images_and_counts_once(trained: Any) -> None:
    settings = OnlineLaplaceConfig(method="online_laplace", prior_precision=2.0)
    images: Any = range(N_IMAGES)
    fitted, approximation = OnlineLaplace(settings).curvature_fit(CONFIG, trained, images)
    posterior = instance_of(LastLayerPosterior, fitted.posterior)
    np.testing.assert_allclose(posterior.weight_variance, 1 / (100 * WEIGHT + 2), rtol=1e-5)
    assert fitted.data_scale == N_IMAGES
    assert approximation == settings.approximation


@pytest.mark.parametrize("split", ["euclidean", "arccos"])
def test_a_post_hoc_fit_is_asked_for_what_the_configuration_says(
    trained: Any, monkeypatch: pytest.MonkeyPatch, split: Any
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(laplace, "fit_laplace", lambda *_, **given: asked.append(given))
    monkeypatch.setattr(laplace, "repeatable_blocks", lambda *_: None)
    images: Any = SimpleNamespace(label_codes=lambda: np.arange(3))
    settings = LaplaceConfig(split=split, structure="diagonal", approximation="positives")
    PostHocLaplace(settings).curvature_fit(CONFIG, trained, images)
    [given] = asked
    assert given["split"] == split
    assert given["structure"] == "diagonal"
    assert given["approximation"] == "positives"
    assert given["margin"] == 0.7
    assert given["scaling"] == settings.scaling


def test_the_name_served_is_that_of_what_was_fitted(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    fitted = laplace_of_curvature(
        *layer, Curvature(WEIGHT, BIAS), data_scale=10.0, prior_precision=2.0
    )

    def fit(*_: object, approximation: str, **__: object) -> LaplaceFit:
        if approximation == "fixed":
            raise CalibrationError("cancels")
        return fitted

    monkeypatch.setattr(laplace, "fit_laplace", fit)
    monkeypatch.setattr(laplace, "repeatable_blocks", lambda *_: None)
    monkeypatch.setattr(laplace, "_norm_correlation", lambda *_: None)
    settings = LaplaceConfig(structure="diagonal", prior_chosen_by="curvature", temperature=1.0)
    method = PostHocLaplace(settings)
    images: Any = SimpleNamespace(label_codes=lambda: np.arange(3))
    splits: Any = SimpleNamespace(training=images, validation=[])
    _, report = method.fit(CONFIG, [trained], splits)
    assert report["method"] == "laplace_positives_euclidean"


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_a_temperature_that_is_given_is_that_of_the_posterior(
    trained: Any, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    layer = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    fitted = laplace_of_curvature(
        *layer, Curvature(WEIGHT, BIAS), data_scale=10.0, prior_precision=2.0
    )
    monkeypatch.setattr(PostHocLaplace, "curvature_fit", lambda *_: (fitted, "fixed"))
    monkeypatch.setattr(laplace, "_norm_correlation", lambda *_: None)
    settings = LaplaceConfig(prior_chosen_by="curvature", temperature=temperature)
    method = PostHocLaplace(settings)
    splits: Any = SimpleNamespace(training=[], validation=[])
    posterior, report = method.fit(CONFIG, [trained], splits)
    found = instance_of(LastLayerPosterior, posterior).weight_variance
    np.testing.assert_allclose(found, temperature / (10 * WEIGHT + 2), rtol=1e-5)
    assert report["temperature"] == temperature


@pytest.mark.parametrize(("fraction", "end"), [(0.001, "smallest"), (0.1, None), (1.0, "largest")])
def test_a_prior_at_an_end_of_the_range_is_reported(
    trained: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fraction: float,
    end: str | None,
) -> None:
    layer = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    fitted = laplace_of_curvature(
        *layer, Curvature(WEIGHT, BIAS), data_scale=10.0, prior_precision=2.0
    )
    search = PriorSearch((0.01, 0.1, 1.0, 0.001), (1.0, 1.0, 1.0, 1.0))
    found = HeldOut(fraction, search, PriorSearch((1.0,), (0.0,)), 0.9, 0.8, 20, 5, 10, None)
    monkeypatch.setattr(PostHocLaplace, "curvature_fit", lambda *_: (fitted, "fixed"))
    monkeypatch.setattr(PostHocLaplace, "_validated", lambda *_, **__: found)
    monkeypatch.setattr(laplace, "_norm_correlation", lambda *_: None)
    settings = LaplaceConfig(structure="diagonal", temperature=1.0)
    splits: Any = SimpleNamespace(training=[], validation=[])
    PostHocLaplace(settings).fit(CONFIG, [trained], splits)
    printed = " ".join(capsys.readouterr().err.split())
    told = f"is {fraction:g} times the mean curvature, the {end} candidate of 0.001, 0.01, 0.1, 1."
    assert ("candidate of" in printed) == (end is not None)
    assert end is None or told in printed
