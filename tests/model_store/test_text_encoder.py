"""The text encoder's contract, on a tower whose vectors are known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from model_store.encoder.contract import (
    TEXT_ENCODER_FILE,
    TEXT_METADATA_KEY,
    TOKENIZER_FILE,
    Cleaning,
    TextMetadata,
)
from model_store.encoder.text import OnnxTextEncoder, cleaned, open_text_encoder
from model_store.errors import BundleMismatch, EncoderContractError, TextUnavailable
from tests.support.word_towers import LENGTH, write_word_tower

VECTORS = {
    "red": np.array([1, 0, 0], np.float32),
    "shoe": np.array([0, 2, 0], np.float32),
}


def tower(directory: Path, **options: Any) -> OnnxTextEncoder:
    write_word_tower(directory, VECTORS, "i" * 64, **options)
    return OnnxTextEncoder(directory, threads=1)


def test_a_text_is_the_mean_of_its_words(tmp_path: Path) -> None:
    encoder = tower(tmp_path)
    tokens = encoder.tokenize(["Red shoe", "red"])
    found = encoder.encode(tokens)
    padding = 1e-3
    np.testing.assert_allclose(
        found.mean,
        [
            [(1 + 6 * padding) / LENGTH, (2 + 6 * padding) / LENGTH, 6 * padding / LENGTH],
            [(1 + 7 * padding) / LENGTH, 7 * padding / LENGTH, 7 * padding / LENGTH],
        ],
        rtol=1e-5,
    )
    np.testing.assert_array_equal(found.features, found.mean)
    assert not found.variance.any()
    assert tokens.mask.sum(axis=1).tolist() == [2, 1]
    assert (encoder.dim, encoder.context_length) == (3, LENGTH)
    assert encoder.metadata == TextMetadata(
        "i" * 64, encoder.metadata.tokenizer, "none", "deterministic"
    )


def test_a_tower_may_know_its_variance(tmp_path: Path) -> None:
    encoder = tower(tmp_path, variance=0.25)
    found = encoder.encode(encoder.tokenize(["red"]))
    np.testing.assert_array_equal(found.variance, np.full((1, 3), 0.25, np.float32))
    assert encoder.metadata.posterior == "constant"


def test_what_does_not_fit_is_cut_off_and_said(tmp_path: Path) -> None:
    encoder = tower(tmp_path)
    long, fits, empty = "red " * 500, "red " * LENGTH, ""
    tokens = encoder.tokenize([long, fits, empty])
    assert tokens.ids.shape == tokens.mask.shape == (3, LENGTH)
    assert tokens.truncated.tolist() == [True, False, False]
    np.testing.assert_array_equal(tokens.ids[0], tokens.ids[1])
    assert tokens.mask[2].sum() == 0


def test_a_directory_without_a_tower(tmp_path: Path) -> None:
    assert open_text_encoder(tmp_path) is None


def test_a_tower_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    write_word_tower(tmp_path, VECTORS, "image")
    (tmp_path / TOKENIZER_FILE).unlink()
    with pytest.raises(EncoderContractError, match=r"tokenizer\.json does not exist"):
        OnnxTextEncoder(tmp_path)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    tower(tmp_path)
    path = tmp_path / TOKENIZER_FILE
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(BundleMismatch, match="not the tokenizer"):
        open_text_encoder(tmp_path)


def test_a_tokenizer_of_another_length_is_refused(tmp_path: Path) -> None:
    tower(tmp_path, length=LENGTH + 1)
    longer = (tmp_path / TOKENIZER_FILE).read_bytes()
    digest = OnnxTextEncoder(tmp_path).metadata.tokenizer
    tower(tmp_path)
    graph = onnx.load(tmp_path / TEXT_ENCODER_FILE)
    metadata = TextMetadata("i" * 64, digest, "none")
    helper.set_model_props(graph, {TEXT_METADATA_KEY: metadata.to_json()})
    onnx.save(graph, tmp_path / TEXT_ENCODER_FILE)
    (tmp_path / TOKENIZER_FILE).write_bytes(longer)
    with pytest.raises(EncoderContractError, match="to \\(9, 9\\) tokens; the encoder reads 8"):
        open_text_encoder(tmp_path)


@pytest.mark.parametrize("change", ["input", "metadata", "output"])
def test_a_graph_that_keeps_no_contract_is_refused(tmp_path: Path, change: str) -> None:
    tower(tmp_path)
    graph = onnx.load(tmp_path / TEXT_ENCODER_FILE)
    if change == "metadata":
        del graph.metadata_props[:]
    else:
        old, new = {"input": ("token_ids", "x"), "output": ("embedding_mean", "y")}[change]
        for value in (*graph.graph.input, *graph.graph.output):
            value.name = new if value.name == old else value.name
        for node in graph.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
    onnx.save(graph, tmp_path / TEXT_ENCODER_FILE)
    with pytest.raises(EncoderContractError, match="Make it again with `vouch-build encoder"):
        open_text_encoder(tmp_path)


def test_without_tokenizers_it_opens_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_word_tower(tmp_path, VECTORS, "i" * 64)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    encoder = OnnxTextEncoder(tmp_path)
    with pytest.raises(TextUnavailable, match="`tokenizers` is not installed"):
        encoder.tokenize(["red"])


class TestCleaning:
    @pytest.mark.parametrize(
        ("cleaning", "wanted"),
        [
            ("none", " A “Café”,\tsnake_case &amp;amp; schÃ¶n "),
            ("whitespace", 'A "Café", snake_case & schön'),
            ("lower", 'a "café", snake_case & schön'),
            ("canonicalize", "a café snake case schön"),
        ],
    )
    def test_each_way(self, cleaning: Cleaning, wanted: str) -> None:
        assert cleaned(" A “Café”,\tsnake_case &amp;amp; schÃ¶n ", cleaning) == wanted

    def test_without_ftfy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ftfy", None)
        assert cleaned("A", "none") == "A"
        with pytest.raises(TextUnavailable, match="`ftfy` is not installed"):
            cleaned("A", "lower")
