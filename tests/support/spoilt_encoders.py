"""Encoders of which some images, or all, have no usable embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.encoder.onnx import OnnxEncoder

Choose = Callable[[NDArray[np.uint8]], bool]
"""Whether an image (H, W, 3) is to have no usable embedding."""


def spoil(monkeypatch: pytest.MonkeyPatch, choose: Choose, number: float = np.nan) -> None:
    """Let every ONNX encoder give a mean of ``number`` for the images that ``choose`` picks."""
    encode = OnnxEncoder.encode

    def encode_spoilt(encoder: OnnxEncoder, images: NDArray[Any], *given: Any) -> Embeddings:
        found = encode(encoder, images, *given)
        spoilt = np.array([[choose(image)] for image in images])
        return replace(found, mean=np.where(spoilt, np.float32(number), found.mean))

    monkeypatch.setattr(OnnxEncoder, "encode", encode_spoilt)


def is_plain(image: NDArray[np.uint8]) -> bool:
    """Whether all pixels of the image are equal."""
    return bool(np.ptp(image) == 0)


def break_graph(source: Path, target: Path, how: Literal["nan", "error"]) -> Path:
    """Write an encoder whose graph gives NaN as each mean, or cannot be run on any image."""
    model = onnx.load(source)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["sound" if name == "embedding_mean" else name for name in names]
    make = onnx.helper.make_node
    if how == "nan":
        nodes = [
            make("Abs", ["sound"], ["positive"]),
            make("Neg", ["positive"], ["negative"]),
            make("Sqrt", ["negative"], ["embedding_mean"]),
        ]
    else:
        missing = onnx.numpy_helper.from_array(np.array([9999]), "missing")
        model.graph.initializer.append(missing)
        nodes = [make("Gather", ["sound", "missing"], ["embedding_mean"], axis=0)]
    model.graph.node.extend(nodes)
    onnx.save(model, target)
    return target
