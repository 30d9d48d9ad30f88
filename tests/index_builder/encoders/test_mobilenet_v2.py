"""The encoder in the box beside the one that `vouch-build encoder` writes of the same weights."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from index_builder.encoders import WEIGHTS_SHA256
from index_builder.encoders.mobilenet_v2 import (
    N_FEATURES,
    WEIGHTS_FILE,
    encoder_file,
    read_weights,
)
from index_builder.foreign_encoders.bundle import write_encoder
from index_builder.foreign_encoders.choices import Door
from index_builder.foreign_encoders.doors import DOORS, EncoderChoices
from index_builder.foreign_encoders.parity import parity_images, prepared
from model_store.encoder import onnx as onnx_encoder
from model_store.encoder.contract import Encoder, EncoderMetadata
from model_store.encoder.onnx import OnnxEncoder
from model_store.machine import int8_sums_overflow
from tests.laws.encoder_laws import EncoderLaws
from tests.support.float_activations import in_float

PACKAGE = resources.files("index_builder.encoders")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("box") / "encoder.onnx"
    path.write_bytes(encoder_file(read_weights()))
    return path


@pytest.fixture(scope="module")
def box(written: Path) -> OnnxEncoder:
    return OnnxEncoder(written, "cpu", threads=1)


@pytest.fixture(scope="module")
def photographs(box: OnnxEncoder) -> NDArray[np.uint8]:
    return prepared(parity_images(None), box.metadata.preprocessing)


class TestEncoderInTheBox(EncoderLaws):
    @pytest.fixture
    def encoder(self, box: OnnxEncoder) -> Encoder:
        return box


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> OnnxEncoder:
    """The encoder that `vouch-build encoder` writes of the same weights, in float32."""
    place = tmp_path_factory.mktemp("torch") / "encoder"
    choices = EncoderChoices(str(PACKAGE / WEIGHTS_FILE))
    source = DOORS[Door.torchvision]("mobilenet_v2", choices)
    write_encoder(place, source, parity_images(None))
    return OnnxEncoder(place / "encoder.onnx", "cpu", threads=1)


@pytest.mark.slow
@pytest.mark.process
class TestBesideTheExportByTorch:
    def test_weights_paddings_and_biases_are_those_of_torch(
        self,
        written: Path,
        exported: OnnxEncoder,
        photographs: NDArray[np.uint8],
        tmp_path: Path,
    ) -> None:
        path = tmp_path / "float.onnx"
        onnx.save(in_float(onnx.load(written)), path)
        found = OnnxEncoder(path, "cpu", threads=1).encode(photographs)
        wanted = exported.encode(photographs)
        assert (found.directions * wanted.directions).sum(1).min() >= 0.99999
        np.testing.assert_allclose(found.features, wanted.features, atol=0.01)

    def test_quantised_activations_cost_little(
        self, box: OnnxEncoder, exported: OnnxEncoder, photographs: NDArray[np.uint8]
    ) -> None:
        wanted_input = replace(exported.metadata.preprocessing, decoding="reduced")
        assert box.metadata == EncoderMetadata(wanted_input, "deterministic")
        assert (box.dim, box.n_features) == (N_FEATURES, N_FEATURES)
        found, wanted = box.encode(photographs), exported.encode(photographs)
        assert (found.directions * wanted.directions).sum(1).min() >= 0.99
        np.testing.assert_array_equal(found.features, found.mean)
        assert not found.variance.any()


def test_encoder_in_the_box_gives_the_same_bits_where_int8_sums_overflow(
    written: Path,
    box: OnnxEncoder,
    photographs: NDArray[np.uint8],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = box.encode(photographs).features
    for overflow in (True, False):
        monkeypatch.setattr(onnx_encoder, "int8_sums_overflow", lambda answer=overflow: answer)
        if not overflow and int8_sums_overflow():
            continue
        found = OnnxEncoder(written, "cpu", threads=1).encode(photographs).features
        np.testing.assert_array_equal(found, wanted)


def test_quantised_encoder_stays_on_the_cpu(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_encoder, "_is_offered", lambda _: pytest.fail("looked for a GPU"))
    assert OnnxEncoder(written).provider == "CPUExecutionProvider"


def test_encoder_in_the_box_gives_the_same_bits_in_any_batch(
    box: OnnxEncoder, photographs: NDArray[np.uint8]
) -> None:
    alone = np.concatenate([box.encode(photographs[i : i + 1]).features for i in range(8)])
    for size in (2, 3, 8):
        np.testing.assert_array_equal(box.encode(photographs, size).features, alone)


def test_encoder_file_is_a_valid_graph_of_the_same_bytes_each_time(written: Path) -> None:
    onnx.checker.check_model(onnx.load(written), full_check=True)
    assert encoder_file(read_weights()) == written.read_bytes()


def test_weights_are_the_file_that_origin_names() -> None:
    content = (PACKAGE / WEIGHTS_FILE).read_bytes()
    assert hashlib.sha256(content).hexdigest() == WEIGHTS_SHA256
    origin = (PACKAGE / "ORIGIN.md").read_text("utf-8")
    assert WEIGHTS_SHA256 in origin
    assert "Apache License" in (PACKAGE / "LICENSE-mobilenet_v2.txt").read_text("utf-8")


@pytest.mark.process
def test_encoder_in_the_box_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from index_builder.encoders import resolve_encoder\n"
        "resolve_encoder(None, Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert (tmp_path / "mobilenet_v2" / "encoder.onnx").is_file()
