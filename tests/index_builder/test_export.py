from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from index_builder.configuration.encoder import NetworkConfig
from index_builder.networks import MetricEncoder, build_encoder
from index_builder.networks.trunk import Trunk
from index_builder.pipeline.export import export_encoder
from index_builder.pipeline.graphs import PARITY_TOLERANCES
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.stored import ProbabilisticEncoder
from model_store.encoder.contract import OUTPUT_NAMES, Embeddings, Encoder, EncoderMetadata
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import ParityError
from model_store.images import Preprocessing
from tests.laws.encoder_laws import EncoderLaws


def probabilistic_encoder(seed: int = 0) -> ProbabilisticEncoder:
    generator = torch.Generator().manual_seed(seed)
    encoder = build_encoder(NetworkConfig(embedding_dim=5), generator)
    shape = encoder.last_layer.weight.shape
    posterior = LastLayerPosterior(
        encoder.last_layer.weight.detach(),
        torch.randn(5, generator=generator),
        torch.rand(shape, generator=generator) * 1e-3 + 1e-6,
        torch.rand(5, generator=generator) * 1e-3 + 1e-6,
    )
    return ProbabilisticEncoder(encoder, posterior)


def exported(path: Path, seed: int = 0) -> tuple[ProbabilisticEncoder, float]:
    encoder = probabilistic_encoder(seed)
    metadata = EncoderMetadata(encoder.encoder.preprocessing, "test")
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28, 3), dtype=np.uint8)
    return encoder, export_encoder(encoder, path, metadata, images)


@pytest.fixture(scope="module")
def exported_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "encoder.onnx"
    exported(path)
    return path


class TestExportedEncoder(EncoderLaws):
    @pytest.fixture
    def encoder(self, exported_path: Path) -> Encoder:
        return OnnxEncoder(exported_path, provider="cpu")


@pytest.mark.parametrize("rank", [3, 37])
def test_a_kronecker_posterior_is_exported_with_its_remainder(tmp_path: Path, rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder = MetricEncoder(TinyTrunk(), embedding_dim=5)
    square = torch.randn(37, 37, generator=generator)
    posterior = KroneckerPosterior(
        torch.randn(5, 36, generator=generator),
        torch.randn(5, generator=generator),
        torch.rand(37, generator=generator) + 0.5,
        torch.linalg.qr(square)[0][:, :rank].contiguous(),
        torch.rand(rank, generator=generator) * 1e-3 + 1e-6,
        torch.tensor(0.0 if rank == 37 else 0.02),
        torch.randn(5, 5, generator=generator),
    )
    probabilistic = ProbabilisticEncoder(encoder, posterior)
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 3), dtype=np.uint8)
    metadata = EncoderMetadata(encoder.preprocessing, "test")
    path = tmp_path / "encoder.onnx"
    assert export_encoder(probabilistic, path, metadata, images) < 1e-4
    served = OnnxEncoder(path, provider="cpu").encode(images)
    with torch.no_grad():
        variance = posterior.predict(encoder.features(torch.from_numpy(images)))[1]
    np.testing.assert_allclose(served.variance, variance.numpy(), rtol=1e-4)


class TinyTrunk(Trunk):
    """So few features that whole last layers can be sampled."""

    preprocessing = Preprocessing(height=4, width=3)
    n_features = 36

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def test_the_closed_form_agrees_with_100_000_sampled_last_layers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder = MetricEncoder(TinyTrunk(), embedding_dim=5)
    posterior = LastLayerPosterior(
        torch.randn(5, 36, generator=generator),
        torch.randn(5, generator=generator),
        torch.rand(5, 36, generator=generator) + 0.01,
        torch.rand(5, generator=generator) + 0.01,
    )
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 3), dtype=np.uint8)
    path, metadata = tmp_path / "tiny.onnx", EncoderMetadata(TinyTrunk.preprocessing, "test")
    export_encoder(ProbabilisticEncoder(encoder, posterior), path, metadata, images)
    out = OnnxEncoder(path, provider="cpu").encode(images[:1])
    features = torch.from_numpy(out.features[0])
    weights, biases = posterior.sample(100_000, generator)
    embeddings = weights @ features + biases
    error = embeddings.std(0) / 100_000**0.5
    assert (abs(torch.from_numpy(out.mean[0]) - embeddings.mean(0)) < 4.5 * error).all()
    np.testing.assert_allclose(out.variance[0], embeddings.var(0), rtol=0.02)


def test_the_same_encoder_exports_to_the_same_bytes(exported_path: Path, tmp_path: Path) -> None:
    exported(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == exported_path.read_bytes()


def test_the_file_names_no_path_of_the_machine(exported_path: Path) -> None:
    content = exported_path.read_bytes()
    assert str(Path(__file__).parents[2]).encode() not in content
    assert b"site-packages" not in content
    assert onnx.load(exported_path).graph.input[0].name == "images"


@pytest.mark.parametrize("output", OUTPUT_NAMES)
@pytest.mark.parametrize("times_tolerance", [1.5, np.nan])
def test_a_file_that_disagrees_is_refused_and_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, times_tolerance: float
) -> None:
    encode, field = OnnxEncoder.encode, output.removeprefix("embedding_")

    def off_in_one_value(self: OnnxEncoder, images: NDArray[np.uint8]) -> Embeddings:
        embeddings = encode(self, images)
        values = getattr(embeddings, field).copy()
        values.flat[np.abs(values).argmax()] *= 1 + times_tolerance * PARITY_TOLERANCES[output]
        return replace(embeddings, **{field: values})

    monkeypatch.setattr(OnnxEncoder, "encode", off_in_one_value)
    with pytest.raises(ParityError, match=rf"^{output} .* Nothing was written"):
        exported(tmp_path / "encoder.onnx")
    assert list(tmp_path.iterdir()) == []
