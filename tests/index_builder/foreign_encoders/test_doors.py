"""Every door, with its real library: small architectures with random weights, and real weights."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.foreign_encoders.bundle import EncoderSource, WrittenEncoder, write_encoder
from index_builder.foreign_encoders.card import CARD_FILE
from index_builder.foreign_encoders.choices import Door, Pooling, Precision
from index_builder.foreign_encoders.doors import DOORS, EncoderChoices
from index_builder.foreign_encoders.parity import ParityImage, parity_images, prepared
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import EncoderSourceError, ParityError, VouchError

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("quiet")]

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
TOWER = {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}
TEXT = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}


def vit(place: Path) -> str:
    import transformers as hf

    hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **SMALL)).save_pretrained(place)
    hf.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(place)
    return str(place)


def dinov2(place: Path) -> str:
    import transformers as hf

    config = hf.Dinov2WithRegistersConfig(
        image_size=42, patch_size=14, num_register_tokens=2, **SMALL
    )
    hf.Dinov2WithRegistersModel(config).save_pretrained(place)
    hf.BitImageProcessor(
        size={"shortest_edge": 33}, crop_size={"height": 28, "width": 28}, resample=3
    ).save_pretrained(place)
    return str(place)


def clip(place: Path) -> str:
    import transformers as hf

    vision = {"image_size": 32, "patch_size": 8, **SMALL}
    hf.CLIPModel(
        hf.CLIPConfig(vision_config=vision, text_config=SMALL, projection_dim=16)
    ).save_pretrained(place)
    hf.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(place)
    return str(place)


def convnext(place: Path) -> str:
    import transformers as hf

    sizes = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
    hf.ConvNextModel(hf.ConvNextConfig(**sizes)).save_pretrained(place)
    hf.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875).save_pretrained(place)
    return str(place)


def tower(place: Path, **vision: Any) -> str:
    import open_clip

    name = f"vouch-{place.parent.name}"
    place.mkdir()
    config = {"embed_dim": 16, "vision_cfg": {**TOWER, **vision}, "text_cfg": TEXT}
    (place / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(place)
    return name


def timm_tower(place: Path) -> str:
    return tower(place, timm_model_name="test_vit", timm_model_pretrained=False, timm_pool="token")


def named(name: str) -> Callable[[Path], str]:
    return lambda _: name


@pytest.mark.parametrize(
    ("door", "model", "exported", "read"),
    [
        ("timm", named("test_vit"), ["default", "mean", "gem", "class_token"], []),
        ("timm", named("test_efficientnet"), ["default", "gem"], []),
        ("open_clip", tower, ["default", "class_token"], ["mean"]),
        ("open_clip", timm_tower, ["default"], ["mean"]),
        ("hf", vit, ["default", "class_token"], ["mean"]),
        ("hf", dinov2, ["default"], ["mean"]),
        ("hf", clip, ["default"], ["mean"]),
        ("hf", convnext, ["default"], ["gem"]),
        ("torchvision", named("mobilenet_v3_small"), ["default"], ["gem"]),
        ("torchvision", named("shufflenet_v2_x0_5"), ["default"], []),
        ("torchvision", named("squeezenet1_1"), ["default"], []),
    ],
)
def test_a_model_of_a_library(
    door: str,
    model: Callable[[Path], str],
    exported: list[str],
    read: list[str],
    tmp_path: Path,
    images: list[ParityImage],
) -> None:
    """All libraries' features are pooled by one function, whose graphs the first two export."""
    name = model(tmp_path / "model")

    def source(pooling: str) -> EncoderSource:
        choices = EncoderChoices(pooling=Pooling(pooling), untrained=door != "hf", seed=3)
        return DOORS[Door(door)](name, choices)

    vectors = []
    for pooling in exported:
        written = write_encoder(tmp_path / pooling, source(pooling), images)
        assert written.parity.smallest_cosine >= 0.9999
        encoder = OnnxEncoder(written.directory / ENCODER_FILE, "cpu")
        found = encoder.encode(prepared(images, encoder.metadata.preprocessing))
        assert not found.variance.any()
        vectors.append(found.mean)
    for pooling in read:
        reference = source(pooling).reference
        vectors.append(np.stack([reference(one.upright) for one in images]))
    for one, other in itertools.pairwise(vectors):
        assert np.isfinite(other).all()
        assert one.shape != other.shape or not np.allclose(one, other, rtol=1e-3)


def test_random_weights_come_from_the_seed(tmp_path: Path, images: list[ParityImage]) -> None:
    found = []
    for number, seed in enumerate([0, 0, 1]):
        source = DOORS[Door.timm]("test_resnet", EncoderChoices(untrained=True, seed=seed))
        written = write_encoder(tmp_path / str(number), source, images)
        found.append(written.directory.joinpath(ENCODER_FILE).read_bytes())
    assert found[0] == found[1] != found[2]


class TestRealWeights:
    """MobileNetV2 and SqueezeNet through each door that can load them."""

    MOBILENET = '{"input_size": [3, 224, 224], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}'
    SQUEEZENET = (
        '{"size": 227, "interpolation": "bilinear", "std": 0.00392156862745098,'
        ' "mean": [0.4823529411764706, 0.4588235294117647, 0.40784313725490196]}'
    )
    CODE = """
import os, numpy, torch
from torchvision import models
from index_builder.networks.trunk import pad_as_tensorflow
from index_builder.networks.weights import load_weights

FOLDER = os.environ["VOUCH_DATA_DIR"] + "/backbones/"

def mobilenet():
    model = models.mobilenet_v2()
    pad_as_tensorflow(model)
    weights = load_weights("mobilenet_v2", FOLDER + "mobilenet_v2_imagenet_int8.npz")
    model.load_state_dict(weights.state, strict=False)
    model.classifier = torch.nn.Identity()
    return model

def squeezenet():
    model = models.squeezenet1_0()
    with numpy.load(FOLDER + "squeezenet1_0_imagenet.npz") as file:
        model.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})
    return torch.nn.Sequential(
        model.features, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )

def wrong():
    return torch.nn.Conv2d(3, 4, 3)

def failing():
    raise RuntimeError("no licence")

def nothing():
    return 7
"""

    @pytest.mark.real_data
    @pytest.mark.parametrize(
        ("model", "weights", "size"),
        [
            ("mobilenet_v2", "mobilenet_v2_imagenet_int8.npz", 224),
            ("squeezenet1_0", "squeezenet1_0_imagenet.npz", 227),
        ],
    )
    def test_every_door_gives_the_same(
        self,
        model: str,
        weights: str,
        size: int,
        data_dir: Path,
        tmp_path: Path,
        images: list[ParityImage],
    ) -> None:
        import torch

        short = model.split("_", maxsplit=1)[0].rstrip("01")
        code, how, graph = (tmp_path / name for name in ("mine.py", "how.json", "graph.onnx"))
        code.write_text(self.CODE)
        how.write_text(getattr(self, short.upper()))
        namespace: dict[str, Any] = {}
        exec(self.CODE, namespace)
        torch.onnx.export(
            namespace[short]().eval(),
            (torch.zeros(2, 3, size, size),),
            graph,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
            dynamo=False,
        )
        local = str(data_dir / "backbones" / weights)
        doors = {
            "torchvision": (model, EncoderChoices(weights=local, preprocess=how)),
            "torch": (f"{code}:{short}", EncoderChoices(preprocess=how)),
            "onnx": (str(graph), EncoderChoices(preprocess=how)),
        }
        found = []
        for door, (name, choices) in doors.items():
            written = write_encoder(tmp_path / door, DOORS[Door(door)](name, choices), images)
            encoder = OnnxEncoder(written.directory / ENCODER_FILE, "cpu")
            pixels = prepared(images, encoder.metadata.preprocessing)
            found.append(encoder.encode(pixels).mean)
        for other in found[1:]:
            scale = np.abs(found[0]).max()
            np.testing.assert_allclose(other / scale, found[0] / scale, atol=1e-4)

    @pytest.mark.parametrize(
        ("factory", "reason"),
        [
            ("wrong", r"1 outputs of shapes \[\(2, 4, 222, 222\)\]"),
            ("failing", "failing\\(\\) of .* fails: RuntimeError: no licence"),
            ("nothing", "returns a int; wanted a torch.nn.Module"),
            ("absent", "AttributeError"),
            ("", "is not FILE.py:FACTORY"),
        ],
    )
    def test_a_module_that_is_none(
        self, factory: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VOUCH_DATA_DIR", "/nowhere")
        (tmp_path / "mine.py").write_text(self.CODE)
        (tmp_path / "how.json").write_text(self.MOBILENET)
        choices = EncoderChoices(preprocess=tmp_path / "how.json")
        place = f"{tmp_path / 'mine.py'}:{factory}"
        with pytest.raises(EncoderSourceError, match=reason):
            DOORS[Door.torch](place, choices)


class TestWhatCannotBeHad:
    @pytest.mark.parametrize(
        ("door", "name", "choices", "reason"),
        [
            ("timm", "no_such_net", {}, "timm cannot load 'no_such_net': Unknown model"),
            ("timm", "test_vit", {"weights": "/no/file"}, "There is no file /no/file"),
            ("open_clip", "ViT-B-32", {}, "Name the weights of 'ViT-B-32': .*openai"),
            ("open_clip", "Nothing/openai", {}, "OpenCLIP cannot load 'Nothing/openai'"),
            ("hf", "/no/folder", {}, "transformers cannot load the image model '/no/folder'"),
            ("hf", "/no/folder", {"weights": "/a"}, "Drop --weights"),
            ("torchvision", "no_such_net", {}, "torchvision has no model 'no_such_net'"),
        ],
    )
    def test_it_is_said(
        self,
        door: str,
        name: str,
        choices: dict[str, Any],
        reason: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the libraries are asked, and not the hub
        with pytest.raises(VouchError, match=reason):
            DOORS[Door(door)](name, EncoderChoices(**choices))

    def test_weights_of_another_model(self, tmp_path: Path) -> None:
        import torch
        from torchvision import models

        torch.save(models.resnet18().state_dict(), tmp_path / "w.pth")
        choices = EncoderChoices(weights=str(tmp_path / "w.pth"))
        with pytest.raises(VouchError, match="The weights do not fit resnet50"):
            DOORS[Door.torchvision]("resnet50", choices)
        with pytest.raises(EncoderSourceError, match="timm cannot load 'test_vit'"):
            DOORS[Door.timm]("test_vit", choices)

    def test_code_that_comes_with_a_repository_is_not_run(self, tmp_path: Path) -> None:
        place = Path(vit(tmp_path / "model"))
        config = json.loads((place / "config.json").read_text())
        config |= {"model_type": "mine", "auto_map": {"AutoConfig": "m.C", "AutoModel": "m.M"}}
        (place / "config.json").write_text(json.dumps(config))
        (place / "m.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        with pytest.raises(EncoderSourceError, match="Code in a repository is never"):
            DOORS[Door.hf](str(place), EncoderChoices())
        assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def many() -> list[ParityImage]:
    """Photographs in two kinds, which a random network can tell apart."""
    return [
        ParityImage(one.name, one.data, one.name.split()[0])
        for one in parity_images(None)
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def smaller(
    many: list[ParityImage], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Precision], WrittenEncoder]:
    """Return an encoder in a precision, written once."""

    @cache
    def written(precision: Precision) -> WrittenEncoder:
        source = DOORS[Door.timm]("test_vit", EncoderChoices(untrained=True))
        place = tmp_path_factory.mktemp("smaller") / "e"
        return write_encoder(place, source, many, precision, 1.0)

    return written


LARGE = """
import torch

class Large(torch.nn.Module):
    def forward(self, images):
        return 1e4 * torch.nn.functional.adaptive_avg_pool2d(1e3 * images, 4).flatten(1)

made = Large
"""


class TestSmallerNumbers:
    @pytest.mark.parametrize("precision", ["float16", "int8_dynamic", "int8_static"])
    def test_their_cost_is_measured_and_on_the_card(
        self,
        precision: str,
        many: list[ParityImage],
        smaller: Callable[[Precision], WrittenEncoder],
    ) -> None:
        written = smaller(Precision(precision))
        card = json.loads((written.directory / CARD_FILE).read_text())
        assert card["precision"] == precision
        cost = written.cost
        assert cost is not None
        assert card["precision_cost"]["recall_at_1"] == cost.recall_at_1
        assert cost.bytes < 0.75 * cost.bytes_float32
        assert cost.bytes == (written.directory / ENCODER_FILE).stat().st_size
        assert 0.9 < cost.smallest_cosine < 1
        encoder = OnnxEncoder(written.directory / ENCODER_FILE, "cpu")
        assert len(encoder.encode(prepared(many[:3], encoder.metadata.preprocessing))) == 3

    def test_static_int8_weights_belong_to_one_node_each(
        self, smaller: Callable[[Precision], WrittenEncoder]
    ) -> None:
        """Processors without VNNI cannot open an encoder in which nodes share such weights."""
        graph = onnx.load(smaller(Precision.int8_static).directory / ENCODER_FILE).graph
        weights = {one.name for one in graph.initializer if one.data_type == onnx.TensorProto.INT8}
        made = [node.output[0] for node in graph.node if node.input and node.input[0] in weights]
        read = Counter(name for node in graph.node for name in node.input)
        assert made
        assert [name for name in made if read[name] > 1] == []

    def test_a_network_that_does_not_fit_into_them_is_refused_with_the_reason(
        self, many: list[ParityImage], tmp_path: Path
    ) -> None:
        (tmp_path / "large.py").write_text(LARGE)
        (tmp_path / "how.json").write_text('{"input_size": [3, 32, 32]}')
        choices = EncoderChoices(preprocess=tmp_path / "how.json")
        source = DOORS[Door.torch](f"{tmp_path / 'large.py'}:made", choices)
        with pytest.raises(ParityError, match=r"no longer have an embedding: .*65,504"):
            write_encoder(tmp_path / "e", source, many, Precision.float16, 1.0)
        assert not (tmp_path / "e").exists()

    def test_what_loses_too_much_is_refused(
        self, many: list[ParityImage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = DOORS[Door.timm]("test_vit", EncoderChoices(untrained=True))
        monkeypatch.setattr(
            "index_builder.foreign_encoders.precision._nearest", _worse_the_first_time()
        )
        with pytest.raises(
            ParityError, match=r"falls from 1.0000 to .* at most 0.0100 is accepted"
        ):
            write_encoder(tmp_path / "e", source, many, Precision.float16, 0.01)
        assert not list(tmp_path.glob("*e*"))


def _worse_the_first_time() -> Callable[[Any], Any]:
    """The nearest of each row: the last rows for smaller numbers, itself for the exact ones."""
    calls = iter([True, False])

    def nearest(directions: Any) -> Any:
        n = len(directions)
        return np.arange(n)[::-1] if next(calls) else np.arange(n)

    return nearest


class TestTheCommand:
    def test_an_encoder_is_written_and_described(self, tmp_path: Path) -> None:
        out = tmp_path / "vit"
        arguments = ["encoder", "--timm", "test_vit", "--untrained", "--out", str(out)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert str(out) in result.output
        card = json.loads((out / CARD_FILE).read_text())
        assert card["origin"]["name"] == "test_vit"
        assert card["origin"]["weights"] == "random, seed 0"
        assert card["parity"]["n_images"] == 8

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--timm", "a", "--hf", "b"], "--timm, --hf exclude each other"),
            (["--onnx", "a.onnx", "--untrained"], "Remove --onnx, or --untrained"),
            (["--onnx", "a.onnx", "--weights", "b"], "Remove --weights"),
            (["--onnx", "missing.onnx"], "There is no file missing.onnx"),
            (["--timm", "test_vit", "--images", "/nowhere"], "has 0 readable images"),
        ],
    )
    def test_options_that_contradict(self, arguments: list[str], reason: str) -> None:
        result = CliRunner().invoke(app, ["encoder", *arguments])
        assert isinstance(result.exception, VouchError)
        assert reason in str(result.exception)
