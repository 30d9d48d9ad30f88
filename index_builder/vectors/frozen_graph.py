"""The graph of an existing encoder, from its input to its features."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnx.utils

from index_builder.vectors.encoder_file import find_encoder
from index_builder.vectors.halves import FEATURES
from index_builder.vectors.opened import encoder_on_cpu


class FrozenGraph:
    """The part of an encoder that computes features; it is not trained.

    Parameters
    ----------
    place : name or path of the encoder, as in `vouch-build index`.

    Attributes
    ----------
    preprocessing : the preprocessing of an upright RGB image, or the shape of the input vectors.
    n_features : F.
    input_name : name of the graph's input.
    content : the graph as a file: pixels, uint8 (B, H, W, 3), or input vectors, float32 (B, n), to
        features (B, F).
    fingerprint : hash of ``content``.

    Raises
    ------
    BundleNotFound : there is no encoder at ``place``.
    EncoderContractError : the encoder violates the contract.
    """

    def __init__(self, place: Path) -> None:
        path = find_encoder(place)
        encoder = encoder_on_cpu(path)
        self.preprocessing = encoder.metadata.input
        self.n_features = encoder.n_features
        self.input_name = encoder.metadata.input_name
        extracted: onnx.ModelProto = onnx.utils.Extractor(onnx.load(path)).extract_model(
            [self.input_name], [FEATURES]
        )
        self.content = extracted.SerializeToString(deterministic=True)
        self.fingerprint = hashlib.sha256(self.content).hexdigest()

    def graph(self) -> onnx.ModelProto:
        """Return a copy of the graph without the metadata of its encoder."""
        graph: onnx.ModelProto = onnx.ModelProto.FromString(self.content)
        del graph.metadata_props[:]
        return graph
