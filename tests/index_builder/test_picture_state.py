"""The head that sees the state of a picture, on photographs and degraded copies of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index_builder.calibration.detector import fit_picture_state
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import DEGRADE, degraded
from index_builder.datasets.folder import folder
from index_builder.encoders.mobilenet_v2 import encoder_file, read_weights
from index_builder.metrics import auroc
from index_builder.vectors.encoder import embed_with_features
from model_store.decision.outliers import DisplacementModel
from model_store.encoder.onnx import OnnxEncoder

PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "demo" / "photographs"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> OnnxEncoder:
    path = tmp_path_factory.mktemp("box") / "encoder.onnx"
    path.write_bytes(encoder_file(read_weights()))
    return OnnxEncoder(path, "cpu", threads=2)


@pytest.fixture(scope="module")
def photographs() -> LabelledImages:
    images = folder(PHOTOGRAPHS)
    return images.at(np.random.default_rng(0).permutation(len(images))[:140])


@pytest.fixture(scope="module")
def head(encoder: OnnxEncoder, photographs: LabelledImages) -> DisplacementModel:
    state = fit_picture_state(encoder, photographs.at(range(80)), seed=0)
    assert state is not None
    return state


def test_head_tells_degraded_from_clean_photographs_it_has_not_seen(
    encoder: OnnxEncoder, photographs: LabelledImages, head: DisplacementModel
) -> None:
    unseen = photographs.at(range(80, 140))
    clean = embed_with_features(encoder, unseen, "clean")
    moved = embed_with_features(encoder, degraded(unseen, seed=9), "degraded")
    values = head.displacement(moved.features)
    assert (auroc(values, head.displacement(clean.features)) or 0) > 0.85
    displaced = 1 - (moved.directions * clean.directions).sum(axis=1)
    assert (
        np.corrcoef(np.argsort(np.argsort(displaced)), np.argsort(np.argsort(values)))[0, 1] > 0.75
    )


def test_percentiles_of_clean_photographs_are_spread(
    encoder: OnnxEncoder, photographs: LabelledImages, head: DisplacementModel
) -> None:
    unseen = embed_with_features(encoder, photographs.at(range(80, 140)), "clean")
    found = [head.percentile(value) for value in head.displacement(unseen.features).tolist()]
    assert 30 < np.mean(found) < 70
    assert np.mean(np.array(found) >= 99) < 0.1


def test_head_of_few_images_is_none(encoder: OnnxEncoder, photographs: LabelledImages) -> None:
    assert fit_picture_state(encoder, photographs.at(range(39)), seed=0) is None


def test_degraded_images_are_the_same_each_time(photographs: LabelledImages) -> None:
    once, again = (degraded(photographs, seed=3) for _ in range(2))
    for position in range(len(DEGRADE)):
        np.testing.assert_array_equal(once.pixels(position), again.pixels(position))
        assert once.pixels(position).dtype == np.uint8


def test_displacement_of_a_head_is_bounded(head: DisplacementModel) -> None:
    far = replace(head, intercept=50.0)
    assert far.displacement(np.zeros((2, len(head.weights)), np.float32)).max() <= 2
