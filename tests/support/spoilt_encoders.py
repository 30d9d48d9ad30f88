"""Encoders of which some images have no usable embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
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
