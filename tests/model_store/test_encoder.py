from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from index_builder.datasets.small_images import digits
from model_store.encoder.contract import METADATA_KEY, Embeddings, Encoder, EncoderMetadata
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import EncoderContractError, EncodingFailed, ProviderUnavailable
from model_store.images import Preprocessing
from tests.laws.encoder_laws import EncoderLaws
from tests.support.spoilt_encoders import break_graph


@pytest.fixture(scope="module")
def onnx_encoder(digits_bundle: Path) -> OnnxEncoder:
    return OnnxEncoder(digits_bundle / "encoder.onnx", provider="cpu")


class TestOnnxEncoder(EncoderLaws):
    @pytest.fixture
    def encoder(self, onnx_encoder: OnnxEncoder) -> Encoder:
        return onnx_encoder

    def test_it_knows_itself(self, encoder: Encoder) -> None:
        assert encoder.metadata.input == Preprocessing(32, 32, decoding="reduced")
        assert encoder.metadata.posterior == "laplace_kronecker_fixed_euclidean"
        assert encoder.metadata.pair_correlation is not None
        assert (encoder.dim, encoder.n_features) == (128, 1024)
        assert encoder.provider == "CPUExecutionProvider"


def test_an_answer_is_the_same_to_the_last_bit_in_any_batch(digits_bundle: Path) -> None:
    """On pictures, not on noise: rounding shows where sums are of very different numbers."""
    encoder = OnnxEncoder(digits_bundle / "encoder.onnx", provider="cpu", threads=1)
    images = digits().at(range(60)).prepared(encoder.metadata.preprocessing)
    alone = Embeddings.concatenate([encoder.encode(images[i : i + 1]) for i in range(60)])
    for size in range(2, 9):
        parts = [encoder.encode(images[start : start + size]) for start in range(0, 60, size)]
        together = Embeddings.concatenate(parts)
        for name in ("mean", "variance", "features"):
            np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))


def test_the_fingerprint_is_of_the_content(digits_bundle: Path, tmp_path: Path) -> None:
    original = digits_bundle / "encoder.onnx"
    copy, other = tmp_path / "copy.onnx", tmp_path / "other.onnx"
    copy.write_bytes(original.read_bytes())
    file = onnx.load(original)
    preprocessing = Preprocessing(28, 28, "cover", decoding="reduced")
    metadata = EncoderMetadata(preprocessing, "laplace_fixed_euclidean")
    onnx.helper.set_model_props(file, {METADATA_KEY: metadata.to_json()})
    onnx.save(file, other)
    assert OnnxEncoder(copy).fingerprint == OnnxEncoder(original).fingerprint
    assert OnnxEncoder(other).fingerprint != OnnxEncoder(original).fingerprint
    assert OnnxEncoder(other).metadata == metadata


def test_an_encoder_of_before_reduced_decoding_says_that_images_are_decoded_in_full() -> None:
    fields = '{"posterior": "point", "preprocessing": {"height": 28, "width": 28}}'
    assert EncoderMetadata.from_json(fields).preprocessing.decoding == "full"


def test_graph_that_fails_is_named_with_the_reason(digits_bundle: Path, tmp_path: Path) -> None:
    file = break_graph(digits_bundle / "encoder.onnx", tmp_path / "encoder.onnx", "error")
    encoder = OnnxEncoder(file, "cpu", threads=1)
    with pytest.raises(EncodingFailed, match=r"graph has failed\. ONNX Runtime says: .*9999"):
        encoder.encode(np.zeros((1, 32, 32, 3), np.uint8))


@pytest.mark.parametrize("damage", ["metadata", "output", "batch"])
def test_a_file_that_breaks_the_contract_is_refused(
    digits_bundle: Path, tmp_path: Path, damage: str
) -> None:
    file = onnx.load(digits_bundle / "encoder.onnx")
    if damage == "metadata":
        del file.metadata_props[:]
    elif damage == "output":
        del file.graph.output[0]
    else:
        file.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(file, tmp_path / "broken.onnx")
    with pytest.raises(
        EncoderContractError, match=r"broken\.onnx.*vouch-build export.*encoder --onnx"
    ):
        OnnxEncoder(tmp_path / "broken.onnx", provider="cpu")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_never_replaced_in_silence(digits_bundle: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="cpu"):
        OnnxEncoder(digits_bundle / "encoder.onnx", provider="cuda")
