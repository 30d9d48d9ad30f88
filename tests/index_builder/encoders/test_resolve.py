"""From `--encoder` to the directory of an encoder."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from index_builder import encoders
from index_builder.commands.app import app
from index_builder.encoders import resolve_encoder
from index_builder.vectors.encoder_file import find_encoder
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import ConfigError, EncoderSourceError, OutputError


class TestEncoderInTheBox:
    def test_it_is_written_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place = resolve_encoder(None, tmp_path / "encoders")
        assert place == tmp_path / "encoders" / "mobilenet_v2"
        assert OnnxEncoder(find_encoder(place), "cpu").dim == 1280
        monkeypatch.delattr(encoders, "_write_encoder_in_the_box")
        with pytest.raises(NameError):
            resolve_encoder(None, tmp_path / "others")

    @pytest.mark.parametrize("damage", ["changed", "truncated", "no file", "no card", "release"])
    def test_damage_is_repaired(self, damage: str, tmp_path: Path) -> None:
        place = resolve_encoder(None, tmp_path)
        file, card = place / "encoder.onnx", place / "encoder.json"
        content, said = file.read_bytes(), card.read_text("utf-8")
        if damage == "changed":
            file.write_bytes(content[:1000] + b"?" + content[1001:])
        elif damage == "truncated":
            file.write_bytes(content[:-10])
        elif damage == "no file":
            file.unlink()
        elif damage == "no card":
            file.unlink()
            card.unlink()
        else:
            changed = json.loads(said)
            changed["origin"]["vouch"] = "0.0.1"
            card.write_text(json.dumps(changed), "utf-8")
        assert resolve_encoder(None, tmp_path) == place
        assert (file.read_bytes(), card.read_text("utf-8")) == (content, said)

    def test_another_directory_of_that_name_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mobilenet_v2").mkdir()
        (tmp_path / "mobilenet_v2" / "mine.txt").write_text("mine", "utf-8")
        with pytest.raises(OutputError, match="is not an encoder's directory"):
            resolve_encoder(None, tmp_path)
        assert [path.name for path in (tmp_path / "mobilenet_v2").iterdir()] == ["mine.txt"]

    def test_processes_that_begin_together_get_the_same_encoder(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as threads:
            places = [threads.submit(resolve_encoder, None, tmp_path) for _ in range(8)]
        assert {one.result() for one in places} == {tmp_path / "mobilenet_v2"}
        assert {path.name for path in tmp_path.iterdir()} <= {"mobilenet_v2", ".mobilenet_v2.lock"}

    def test_a_directory_that_cannot_be_written_to_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "encoders").write_text("a file")
        with pytest.raises(OutputError, match=r"Cannot write the encoder in .*mobilenet_v2"):
            resolve_encoder(None, tmp_path / "encoders")


class TestSpecification:
    def test_a_path_is_itself(self, tmp_path: Path) -> None:
        place = resolve_encoder(None, tmp_path)
        for path in (place, place / "encoder.onnx"):
            assert resolve_encoder(str(path), tmp_path / "none") == path
        assert not (tmp_path / "none").exists()

    @pytest.mark.slow
    @pytest.mark.process
    def test_a_model_of_a_library_is_exported_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        weights = Path(encoders.__file__).with_name("mobilenet_v2_imagenet_int8.npz")
        spec = f"torchvision:mobilenet_v2/{weights}"
        place = resolve_encoder(spec, tmp_path)
        assert place.name == "torchvision-mobilenet_v2-mobilenet_v2_imagenet_int8"
        assert json.loads((place / "encoder.json").read_text("utf-8"))["origin"]["spec"] == spec
        assert OnnxEncoder(find_encoder(place), "cpu").dim == 1280
        monkeypatch.delattr(encoders, "_export")
        assert resolve_encoder(spec, tmp_path) == place
        with pytest.raises(NameError):
            resolve_encoder("torchvision:mobilenet_v2/IMAGENET1K_V1", tmp_path)

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ("resnet50", r"'resnet50'.*Did you mean timm:resnet50\?"),
            ("tim:resnet50", r"Did you mean timm:resnet50\?"),
            ("openclip:ViT-B-32/openai", r"Did you mean open_clip:ViT-B-32/openai\?"),
            ("timm:", "one of timm:NAME"),
            ("s3://bucket/encoder", "one of timm:NAME"),
        ],
    )
    def test_an_unknown_one_is_refused(self, spec: str, said: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=said):
            resolve_encoder(spec, tmp_path)
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    @pytest.mark.process
    def test_a_model_that_the_library_lacks_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(EncoderSourceError, match="torchvision has no model 'resnet51'"):
            resolve_encoder("torchvision:resnet51", tmp_path)
        assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_an_encoder_that_cannot_be_is_refused_before_data_are_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    found = CliRunner().invoke(app, ["all", "--images", missing, "--encoder", "tim:resnet18"])
    assert found.exit_code == 1
    assert "Did you mean timm:resnet18?" in str(found.exception)
    assert missing not in str(found.exception)
