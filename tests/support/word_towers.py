"""A text tower without a network: a text's embedding is the mean of its words' vectors."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

from model_store.bundles.bundle import Bundle
from model_store.bundles.manifest import MANIFEST_FILE, SIGNATURE_FILE, read_manifest
from model_store.bundles.publish import publish
from model_store.decision.outliers import label_means
from model_store.encoder.contract import (
    TEXT_ENCODER_FILE,
    TEXT_METADATA_KEY,
    TOKENIZER_FILE,
    Cleaning,
    TextMetadata,
)

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""The names of the digits' labels."""

LENGTH = 8


def write_word_tower(
    directory: Path,
    vectors: Mapping[str, NDArray[np.float32]],
    image_encoder: str,
    *,
    variance: float | None = None,
    cleaning: Cleaning = "none",
    length: int = LENGTH,
) -> None:
    """Write a tower that knows the words of ``vectors``; padding and other words count nothing.

    Parameters
    ----------
    variance : of every dimension of every text; None for a tower without one.
    length : L, of tokens.
    """
    dim = len(next(iter(vectors.values())))
    vocabulary = {"<pad>": 0, "<unk>": 1} | {word: 2 + n for n, word in enumerate(vectors)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.enable_padding(length=length, pad_id=0, pad_token="<pad>")
    tokenizer.enable_truncation(length)
    content = tokenizer.to_str().encode()
    (directory / TOKENIZER_FILE).write_bytes(content)
    # The unknown word points somewhere, so that a text of nothing else has a direction.
    first = np.full((2, dim), 1e-3, np.float32)
    table = np.concatenate([first, np.stack(list(vectors.values())).astype(np.float32)])
    nodes = [
        helper.make_node("Gather", ["table", "token_ids"], ["words"]),
        helper.make_node("ReduceMean", ["words"], ["embedding_mean"], axes=[1], keepdims=0),
    ]
    outputs = ["embedding_mean"]
    weights = [numpy_helper.from_array(table, "table")]
    if variance is not None:
        nodes += [
            helper.make_node("Mul", ["embedding_mean", "nought"], ["zeros"]),
            helper.make_node("Add", ["zeros", "spread"], ["embedding_variance"]),
        ]
        weights += [
            numpy_helper.from_array(np.array(0, np.float32), "nought"),
            numpy_helper.from_array(np.array(variance, np.float32), "spread"),
        ]
        outputs.append("embedding_variance")
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["batch", length])],
        [helper.make_tensor_value_info(one, TensorProto.FLOAT, ["batch", dim]) for one in outputs],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    metadata = TextMetadata(
        image_encoder,
        hashlib.sha256(content).hexdigest(),
        cleaning,
        "deterministic" if variance is None else "constant",
    )
    helper.set_model_props(model, {TEXT_METADATA_KEY: metadata.to_json()})
    onnx.save(model, directory / TEXT_ENCODER_FILE)


def words_of_digits(bundle: Bundle) -> dict[str, NDArray[np.float32]]:
    """The mean direction of each digit, under its name."""
    gallery = bundle.retriever.gallery
    means = label_means(gallery).directions
    return {WORDS[int(label)]: means[code] for code, label in enumerate(gallery.labels)}


def with_word_tower(bundle: Bundle, root: Path, **options: Any) -> Path:
    """Publish a bundle of digits with a tower that knows their names; returns its directory."""
    staging = root.with_name("staging")
    shutil.copytree(bundle.directory, staging)
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        (staging / name).unlink(missing_ok=True)
    fingerprint = bundle.retriever.encoder.fingerprint
    write_word_tower(staging, words_of_digits(bundle), fingerprint, **options)
    return publish(staging, read_manifest(bundle.directory), root)


def write_captions(path: Path, lines: list[dict[str, str]]) -> Path:
    """Write a table of captions as JSON, a line each."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def captions_of_digits(bundle: Bundle, n: int, seed: int) -> list[dict[str, str]]:
    """Draw captions of a gallery's digits: in one of four a second name stands beside the first.

    Which of the two is meant nobody can tell: it is right half of the time.
    """
    generator = np.random.default_rng(seed)
    labels = bundle.retriever.gallery.labels
    lines = []
    for _ in range(n):
        label = str(generator.choice(labels))
        words = [WORDS[int(label)], *generator.choice(["a", "the", "digit", "photo", "nice"], 2)]
        if generator.random() < 0.25:
            words.append(WORDS[int(generator.choice([one for one in labels if one != label]))])
        lines.append({"text": " ".join(generator.permutation(words)), "label": label})
    return lines
