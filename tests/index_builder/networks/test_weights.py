"""Pretrained weights, by name and from files; nothing here is downloaded."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import models

from index_builder.configuration.encoder import NetworkConfig
from index_builder.networks import MetricEncoder, build_encoder, load_pretrained, save_checkpoint
from index_builder.networks.trunk import TorchvisionTrunk, imagenet_normalisation
from index_builder.networks.weights import load_weights
from index_builder.storage.web import Probe
from model_store.errors import WeightsError


def state_of(name: str, seed: int = 0) -> dict[str, Tensor]:
    """A torchvision model's weights, with batch statistics that differ from the untrained ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = dict(models.get_model(name, weights=None, num_classes=7).state_dict())
    for key, value in state.items():
        if key.endswith("running_mean"):
            state[key] = torch.linspace(-0.1, 0.1, len(value))
    return state


@pytest.fixture(scope="module")
def resnet() -> dict[str, Tensor]:
    return state_of("resnet18")


def built(weights: Path, trunk: str = "resnet18", **fields: object) -> MetricEncoder:
    size = {} if trunk == "small_cnn" else {"input_size": 64}
    config = NetworkConfig.model_validate(
        {"trunk": trunk, "weights": str(weights), **size, **fields}
    )
    encoder = build_encoder(config, torch.Generator().manual_seed(1))
    load_pretrained(encoder, config)
    return encoder.eval()


def write_pth(path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, path)


def write_nested_pth(path: Path, state: dict[str, Tensor]) -> None:
    torch.save({"state_dict": state, "epoch": 3}, path)


def write_safetensors(path: Path, state: dict[str, Tensor]) -> None:
    save_file({name: value.contiguous() for name, value in state.items()}, path)


@pytest.mark.parametrize(
    ("name", "write"),
    [("w.pth", write_pth), ("w.pt", write_nested_pth), ("w.safetensors", write_safetensors)],
)
def test_a_local_file_gives_the_features_of_the_model_it_was_saved_from(
    name: str,
    write: Callable[[Path, dict[str, Tensor]], None],
    resnet: dict[str, Tensor],
    tmp_path: Path,
) -> None:
    write(tmp_path / name, resnet)
    encoder = built(tmp_path / name)
    whole = models.resnet18(weights=None, num_classes=7).eval()
    whole.load_state_dict(resnet)
    whole.fc = nn.Identity()
    images = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = ((images / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        torch.testing.assert_close(encoder.features(images), whole(pixels))


def test_the_models_own_linear_layer_can_be_the_last_layer(
    resnet: dict[str, Tensor], tmp_path: Path
) -> None:
    save_file(resnet, tmp_path / "w.safetensors")
    encoder = built(tmp_path / "w.safetensors", last_layer="loaded", embedding_dim=7)
    assert torch.equal(encoder.last_layer.weight, resnet["fc.weight"])
    assert torch.equal(encoder.last_layer.bias, resnet["fc.bias"])
    with pytest.raises(WeightsError, match=r"embedding_dim = 9; .* has one of 7 dimensions"):
        built(tmp_path / "w.safetensors", last_layer="loaded", embedding_dim=9)


def test_the_checkpoint_of_a_run_is_taken_whole(tmp_path: Path) -> None:
    config = NetworkConfig(embedding_dim=6)
    encoder = build_encoder(config, torch.Generator().manual_seed(3))
    encoder.standardise(torch.randint(0, 200, (5, 28, 28, 3), dtype=torch.uint8))
    save_file(encoder.state_dict(), tmp_path / "checkpoint.safetensors")
    path = tmp_path / "checkpoint.safetensors"
    again = built(path, trunk="small_cnn", embedding_dim=6, last_layer="loaded")
    for name, value in encoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    other = built(path, trunk="small_cnn", embedding_dim=6)
    assert not torch.equal(other.last_layer.weight, encoder.last_layer.weight)
    with pytest.raises(WeightsError, match="does not fit the encoder"):
        built(path, trunk="small_cnn", embedding_dim=5, last_layer="loaded")


def quantised(path: Path, seed: int = 0) -> dict[str, Tensor]:
    """An .npz of int8 convolutions like the one in the data, and the weights that it stands for."""
    generator = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    plain: dict[str, Tensor] = {}
    for name, value in models.mobilenet_v2(weights=None).state_dict().items():
        layer = name.removesuffix(".weight")
        if name.endswith(".weight") and value.ndim == 4:
            whole = generator.integers(-127, 128, tuple(value.shape), dtype=np.int8)
            scale = (0.1 + generator.random(len(value)).astype(np.float32)) / whole[0].size
            bias = generator.normal(0, 0.1, len(value)).astype(np.float32)
            arrays |= {f"{layer}.q": whole, f"{layer}.scale": scale, f"{layer}.bias": bias}
            plain[layer] = torch.from_numpy(whole * scale[:, None, None, None])
            plain[f"{layer}.bias"] = torch.from_numpy(bias)
    np.savez(path, **arrays)  # type: ignore[arg-type] # numpy's stub
    return plain


def test_quantised_weights_bring_their_padding_and_their_pixels(tmp_path: Path) -> None:
    plain = quantised(tmp_path / "w.npz")
    encoder = built(tmp_path / "w.npz", trunk="mobilenet_v2")
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    pixels = (images / 127.5 - 1).permute(0, 3, 1, 2)
    # The first two layers by hand: strided with rows added below and to the right, then depthwise.
    padded = nn.functional.pad(pixels, (0, 1, 0, 1))
    first = nn.functional.conv2d(
        padded, plain["features.0.0"], plain["features.0.0.bias"], stride=2
    ).clamp(0, 6)
    second = nn.functional.conv2d(
        first,
        plain["features.1.conv.0.0"],
        plain["features.1.conv.0.0.bias"],
        padding=1,
        groups=32,
    ).clamp(0, 6)
    trunk = encoder.trunk
    assert isinstance(trunk, TorchvisionTrunk)
    blocks = trunk.backbone.get_submodule("features")
    with torch.inference_mode():
        ours = blocks.get_submodule("0")(pixels)
        torch.testing.assert_close(ours, first, rtol=1e-4, atol=1e-4)
        ours = blocks.get_submodule("1.conv.0")(ours)
        torch.testing.assert_close(ours, second, rtol=1e-4, atol=1e-4)
        assert encoder.features(images).shape == (2, 1280)


EMPTY_ARCHIVE = b"PK\x05\x06" + bytes(18)


class Payload:
    """Would run code where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("the file ran its code",))


def test_the_checkpoint_of_quantised_weights_keeps_their_padding(tmp_path: Path) -> None:
    quantised(tmp_path / "w.npz")
    first = built(tmp_path / "w.npz", trunk="mobilenet_v2", embedding_dim=6)
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(first.state_dict(), path, str(tmp_path / "w.npz"))
    (tmp_path / "w.npz").unlink()
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    again = built(path, trunk="mobilenet_v2", embedding_dim=6, last_layer="loaded")
    with torch.inference_mode():
        assert torch.equal(again(images), first(images))


def test_a_quantised_linear_layer_keeps_its_bias(tmp_path: Path) -> None:
    quantised(tmp_path / "w.npz")
    arrays = dict(np.load(tmp_path / "w.npz"))
    whole = np.random.default_rng(1).integers(-9, 9, (6, 1280), dtype=np.int8)
    arrays |= {
        "classifier.1.q": whole,
        "classifier.1.scale": np.full(6, 0.5, np.float32),
        "classifier.1.bias": np.arange(6, dtype=np.float32),
    }
    np.savez(tmp_path / "w.npz", **arrays)
    encoder = built(tmp_path / "w.npz", trunk="mobilenet_v2", last_layer="loaded", embedding_dim=6)
    assert encoder.last_layer.bias.tolist() == list(range(6))
    assert torch.equal(encoder.last_layer.weight, torch.from_numpy(whole * np.float32(0.5)))


def test_a_file_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps({"conv1.weight": Payload()}, protocol=2))
    with pytest.raises(WeightsError, match="cannot be read"):
        load_weights("resnet18", str(path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("w.txt", b"weights", "no .safetensors"),
        ("w.pth", b"not a zip", "cannot be read"),
        ("w.safetensors", b"\x08\x00", "cannot be read"),
        ("w.npz", b"PK but no more", "cannot be read"),
        ("empty.npz", EMPTY_ARCHIVE, "holds no arrays"),
        (None, None, "neither a file nor one of IMAGENET1K_V1"),
    ],
)
def test_what_cannot_be_read_is_said(
    name: str | None, content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / (name or "missing.pth")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=said):
        load_weights("resnet18", str(path))


def test_weights_of_another_model_do_not_fit(resnet: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(resnet, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match="do not fit the trunk"):
        built(tmp_path / "w.safetensors", trunk="mobilenet_v2")
    with pytest.raises(WeightsError, match="small_cnn"):
        built(tmp_path / "w.safetensors", trunk="small_cnn")


def test_a_name_of_torchvisions_is_downloaded_or_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, resnet: dict[str, Tensor], tmp_path: Path
) -> None:
    def offline(*_: object, **__: object) -> dict[str, Tensor]:
        raise URLError("no route to host")

    monkeypatch.setattr(models.WeightsEnum, "get_state_dict", offline)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for answers, reason in ((True, "no route to host"), (False, "the server does not answer")):
        monkeypatch.setattr(Probe, "answers", lambda _, found=answers: found)
        said = rf"Cannot download .* from https://.*{reason}.*give its path"
        with pytest.raises(WeightsError, match=said):
            load_weights("resnet18", "IMAGENET1K_V1")
    monkeypatch.setattr(Probe, "answers", lambda _: True)
    monkeypatch.setattr(models.WeightsEnum, "get_state_dict", lambda *_, **__: resnet)
    assert load_weights("resnet18", "IMAGENET1K_V1").state is resnet


def test_batch_statistics_stay_as_they_were_pretrained(
    resnet: dict[str, Tensor], tmp_path: Path
) -> None:
    save_file(resnet, tmp_path / "w.safetensors")
    encoder = built(tmp_path / "w.safetensors").train()
    before = encoder.trunk.state_dict()["backbone.bn1.running_mean"].clone()
    encoder.features(torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8))
    assert torch.equal(encoder.trunk.state_dict()["backbone.bn1.running_mean"], before)
    assert encoder.training
    fresh = build_encoder(NetworkConfig(trunk="resnet18", input_size=64), torch.Generator()).train()
    fresh.features(torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8))
    assert fresh.trunk.state_dict()["backbone.bn1.running_mean"].abs().max() > 0


def test_googlenet_has_its_own_range_of_pixels_and_no_auxiliary_classifiers(tmp_path: Path) -> None:
    """The features of torchvision's own, which takes ImageNet's normalisation and undoes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = models.googlenet(aux_logits=True, init_weights=False, transform_input=True).eval()
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    encoder = built(tmp_path / "w.pth", trunk="googlenet").eval()
    theirs.fc = torch.nn.Identity()
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8))
    mean, std = imagenet_normalisation()
    pixels = (images.permute(0, 3, 1, 2) / 255 - mean[:, None, None]) / std[:, None, None]
    with torch.no_grad():
        torch.testing.assert_close(encoder.features(images), theirs(pixels), atol=1e-4, rtol=1e-4)
