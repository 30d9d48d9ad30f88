"""A posterior over an encoder that is there already: its graph, with a head behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from index_builder.configuration.build import encoder_config
from index_builder.configuration.encoder import EncoderConfig, NetworkConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet, Splits
from index_builder.foreign_encoders.choices import Pooling
from index_builder.networks import build_encoder
from index_builder.networks.encoder import trunk_fingerprint
from index_builder.pipeline.export import export_encoder
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.stored import ProbabilisticEncoder
from index_builder.vectors.encoder import OnnxHead, OnnxTrunk
from model_store.encoder.contract import EncoderMetadata
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import BundleNotFound
from tests.index_builder.foreign_encoders.test_onnx_graphs import (
    N_FEATURES,
    SIDE,
    brought,
    feature_map,
    linear,
)

DIM = 3


def some_images(n: int = 6) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8)


def network(place: Path, **fields: object) -> NetworkConfig:
    return NetworkConfig.model_validate(
        {"trunk": "onnx", "encoder": place, "embedding_dim": DIM, **fields}
    )


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_features_stay_and_the_head_is_the_posterior(opset: int, tmp_path: Path) -> None:
    graph = feature_map(tmp_path / "a.onnx", opset=opset)
    written, _ = brought(graph, pooling=Pooling.mean)
    generator = torch.Generator().manual_seed(0)
    encoder = build_encoder(network(written.directory), generator).eval()
    layer = encoder.last_layer
    posterior = LastLayerPosterior(
        layer.weight.detach(),
        layer.bias.detach(),
        torch.rand(layer.weight.shape, generator=generator),
        torch.rand(layer.bias.shape, generator=generator),
    )
    whole = ProbabilisticEncoder(encoder, posterior)
    path = tmp_path / "whole.onnx"
    metadata = EncoderMetadata(encoder.preprocessing, "test")
    export_encoder(whole, path, metadata, some_images())
    found = OnnxEncoder(path, "cpu").encode(some_images())
    before = OnnxEncoder(written.directory / "encoder.onnx", "cpu").encode(some_images())
    np.testing.assert_array_equal(found.features, before.features)
    by_hand = before.features @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(found.mean, by_hand, rtol=1e-5, atol=1e-5)
    squares = np.square(before.features) @ posterior.weight_variance.numpy().T
    wanted = squares + posterior.bias_variance.numpy()
    np.testing.assert_allclose(found.variance, wanted, rtol=1e-4)


def test_trunks_of_other_graphs_have_other_fingerprints(tmp_path: Path) -> None:
    encoders = []
    for name, channels_last in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        written, _ = brought(linear(tmp_path / name / "a.onnx", channels_last=channels_last))
        encoders.append(build_encoder(network(written.directory), torch.Generator()))
    assert trunk_fingerprint(encoders[0]) != trunk_fingerprint(encoders[1])


class TestABuild:
    """Train, fit and export with a folder's images, as `all --encoder` does."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> EncoderConfig:
        written, _ = brought(linear(tmp_path / "a.onnx"))
        return encoder_config(tmp_path, written.directory, "things")

    @pytest.fixture
    def splits(self) -> Splits:
        """Four labels, each a colour with noise."""
        rng = np.random.default_rng(0)
        colours = rng.integers(40, 216, (4, 3))
        labels = np.repeat(np.arange(4), 12)
        noise = rng.normal(0, 25, (48, SIDE, SIDE, 3))
        pixels = (colours[labels][:, None, None] + noise).clip(0, 255).astype(np.uint8)
        names = tuple(f"{number:02}" for number in range(48))

        every = LabelledImages(
            names, tuple(map(str, labels.tolist())), lambda row, _: pixels[row], np.arange(48)
        )
        training, validation = (
            every.at(np.flatnonzero(np.arange(48) % 6)),
            every.at(range(0, 48, 6)),
        )
        none = QuerySet(every.at([]), every.at([]), None)
        return Splits(every, training, validation, none, none)

    def test_its_uncertainty_is_learned_and_its_features_stay(
        self, config: EncoderConfig, splits: Splits, tmp_path: Path
    ) -> None:
        assert config.network.frozen
        assert config.network.embedding_dim is None
        run = Run(tmp_path / "run")
        train_step(config, run, splits)
        fit_step(config, run, splits)
        export_step(config, run, splits)
        found = OnnxEncoder(run.staging / "encoder.onnx", "cpu").encode(some_images())
        assert found.mean.shape[1] == N_FEATURES
        before = OnnxEncoder(tmp_path / "encoder" / "encoder.onnx", "cpu").encode(some_images())
        np.testing.assert_array_equal(found.features, before.features)
        assert (found.variance > 0).all()
        assert json.loads((run.directory / "posterior.json").read_text())["method"].startswith(
            "laplace"
        )
        by_halves = OnnxHead(run.head).embeddings(OnnxTrunk(run.trunk).features(some_images()))
        np.testing.assert_array_equal(by_halves.mean, found.mean)
        np.testing.assert_array_equal(by_halves.variance, found.variance)


class TestTheConfiguration:
    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"trunk": "onnx"}, 'encoder: trunk = "onnx" needs `encoder`'),
            ({"trunk": "small_cnn", "encoder": "a"}, "Drop `trunk` or `encoder`"),
            ({"encoder": "a", "weights": "b"}, "weights: `encoder` has its own"),
            ({"encoder": "a", "frozen": False}, "frozen: an encoder is not trained"),
            ({"encoder": "a", "last_layer": "loaded"}, 'last_layer: "loaded" needs `weights`'),
            ({"encoder": "a", "feature_norm": True}, "feature_norm: an encoder is not"),
            ({"encoder": "a", "pooling": "gem"}, "pooling: `encoder` has its own"),
            ({"encoder": "a", "input_size": 64}, "input_size: `encoder` has its own"),
            ({"encoder": "a", "dropout_inside": True}, "dropout_inside: it needs trunk"),
        ],
    )
    def test_nothing_is_ignored(self, fields: dict[str, object], reason: str) -> None:
        with pytest.raises(ValidationError, match=reason):
            NetworkConfig.model_validate(fields)

    def test_members_of_an_ensemble_train_their_trunks(self) -> None:
        network = {"trunk": "onnx", "encoder": "a"}
        fields = {"name": "a", "network": network, "posterior": {"method": "ensemble"}}
        with pytest.raises(ValidationError, match="the members of an ensemble train"):
            EncoderConfig.model_validate(fields)

    def test_there_is_no_such_encoder(self, tmp_path: Path) -> None:
        with pytest.raises(BundleNotFound, match="There is no encoder at"):
            build_encoder(network(tmp_path), torch.Generator())
