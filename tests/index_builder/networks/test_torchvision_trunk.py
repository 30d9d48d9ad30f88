"""Every trunk keeps the contract: features, gradients, and ONNX that agrees at any batch size."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from index_builder.configuration.encoder import NetworkConfig
from index_builder.networks import build_encoder
from index_builder.networks.trunk import TorchvisionName
from index_builder.pipeline.export import export_encoder
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.learned_variances import VarianceHead, VarianceHeadPosterior
from index_builder.posteriors.stored import Posterior, ProbabilisticEncoder
from model_store.encoder.contract import EncoderMetadata
from model_store.encoder.onnx import OnnxEncoder

SIZE = 64
IMAGES = np.random.default_rng(0).integers(0, 256, (5, SIZE, SIZE, 3), dtype=np.uint8)


def config_of(name: str, pooling: str = "average") -> NetworkConfig:
    return NetworkConfig.model_validate(
        {"trunk": name, "pooling": pooling, "input_size": SIZE, "embedding_dim": 6}
    )


def posterior_of(layer: torch.nn.Linear, kind: str) -> Posterior:
    generator = torch.Generator().manual_seed(0)
    if kind == "laplace":
        weight, bias = layer.weight.detach(), layer.bias.detach()
        return LastLayerPosterior(
            weight,
            bias,
            torch.rand(weight.shape, generator=generator) * 1e-2 + 1e-6,
            torch.rand(bias.shape, generator=generator) * 1e-2 + 1e-6,
        )
    head = VarianceHead(layer.in_features, layer.out_features, isotropic=kind == "isotropic")
    torch.nn.init.normal_(head.layer.weight, 0, 0.1, generator=generator)
    return VarianceHeadPosterior(layer, head).requires_grad_(requires_grad=False)


@pytest.fixture
def _two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vision transformers of two blocks in place of twelve alike, whose weights take seconds."""
    from torchvision.models import vision_transformer

    built = "torchvision.models.vision_transformer._vision_transformer"
    whole = vision_transformer._vision_transformer
    monkeypatch.setattr(built, lambda **options: whole(**{**options, "num_layers": 2}))


@pytest.mark.slow
@pytest.mark.usefixtures("_two_blocks")
@pytest.mark.parametrize("name", get_args(TorchvisionName))
def test_each_trunk_exports_with_parity(name: str, tmp_path: Path) -> None:
    encoder = build_encoder(config_of(name), torch.Generator().manual_seed(0)).eval()
    exported = ProbabilisticEncoder(encoder, posterior_of(encoder.last_layer, "laplace"))
    path = tmp_path / "encoder.onnx"
    export_encoder(exported, path, EncoderMetadata(encoder.preprocessing, "test"), IMAGES)
    served = OnnxEncoder(path, provider="cpu")
    assert served.n_features == encoder.trunk.n_features
    assert served.encode(IMAGES).mean.shape == (5, 6)
    assert served.metadata.preprocessing.height == SIZE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
def test_each_variance_head_exports_with_parity(kind: str, tmp_path: Path) -> None:
    encoder = build_encoder(config_of("resnet18", "gem"), torch.Generator().manual_seed(0)).eval()
    posterior = posterior_of(encoder.last_layer, kind)
    exported = ProbabilisticEncoder(encoder, posterior)
    path = tmp_path / "encoder.onnx"
    export_encoder(exported, path, EncoderMetadata(encoder.preprocessing, "test"), IMAGES)
    out = OnnxEncoder(path, provider="cpu").encode(IMAGES)
    np.testing.assert_allclose(np.linalg.norm(out.mean, axis=1), 1, rtol=1e-5)
    assert (out.variance > 0).all()
    assert (np.ptp(out.variance, axis=1) == 0).all() == (kind == "isotropic")


def test_the_generator_alone_decides_on_the_initial_weights() -> None:
    torch.manual_seed(5)
    first = build_encoder(config_of("resnet18"), torch.Generator().manual_seed(0)).state_dict()
    torch.manual_seed(6)
    state = torch.random.get_rng_state()
    again = build_encoder(config_of("resnet18"), torch.Generator().manual_seed(0)).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build_encoder(config_of("resnet18"), torch.Generator().manual_seed(1)).state_dict()
    assert not torch.equal(first["last_layer.weight"], other["last_layer.weight"])


def test_a_frozen_trunk_has_nothing_to_train(tmp_path: Path) -> None:
    frozen = NetworkConfig(trunk="resnet18", weights="IMAGENET1K_V1", frozen=True, input_size=SIZE)
    encoder = build_encoder(frozen, torch.Generator().manual_seed(0))
    learned = [name for name, p in encoder.named_parameters() if p.requires_grad]
    assert learned == ["last_layer.weight", "last_layer.bias"]


def test_one_more_batch_normalisation_learns_its_statistics_and_no_parameters() -> None:
    fields = config_of("resnet18").model_dump() | {"feature_norm": True}
    network = NetworkConfig.model_validate(fields)
    encoder = build_encoder(network, torch.Generator().manual_seed(0))
    plain = build_encoder(config_of("resnet18"), torch.Generator().manual_seed(0))
    names = {name for name, _ in encoder.named_parameters()}
    assert names == {name for name, _ in plain.named_parameters()}
    images = torch.from_numpy(IMAGES)
    encoder.train()
    features = encoder.features(images)
    torch.testing.assert_close(features.mean(0), torch.zeros(512), atol=1e-5, rtol=0)
    before = encoder.eval().features(images)
    assert not torch.allclose(before, features)  # in evaluation the statistics are those learned
    torch.testing.assert_close(encoder.features(images[:2]), before[:2], atol=1e-4, rtol=1e-4)
