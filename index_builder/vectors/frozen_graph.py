"""ONNX graphs without a network: an encoder's graph up to its features, and declared encoders.

A declared encoder is the encoder file for vectors that another system computes; the encoder returns
its input. Galleries, calibrations and caches identify it by this file, as any other encoder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
from onnx import TensorProto, helper, numpy_helper

from index_builder.output import writing
from index_builder.vectors.encoder import FEATURES
from index_builder.vectors.encoder_file import encoder_on_cpu, find_encoder
from model_store.encoder.contract import (
    METADATA_KEY,
    OUTPUT_NAMES,
    VECTORS_NAME,
    EncoderMetadata,
    VectorInput,
)
from model_store.files import replacing


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


_OPSET, _IR_VERSION = 17, 8
"""Versions of the ONNX operators and of the ONNX format. The versions are fixed, so that the
fingerprint of the file does not depend on the installed version of onnx."""


def write_declared_encoder(path: Path, vectors: VectorInput) -> None:
    """Write an encoder that takes ``vectors`` and returns mean, variance and features.

    If the vectors have no variance, the encoder returns zero as the variance. If the vectors have
    no features, the encoder returns the mean as the features.

    Raises
    ------
    OutputError : the disk is full, or the directory is not writable.
    """
    sizes = vectors.sizes
    given = [name for name, size in zip(OUTPUT_NAMES, sizes, strict=True) if size]
    mean, variance, features = OUTPUT_NAMES
    nodes = [helper.make_node("Split", [VECTORS_NAME, "sizes"], given, axis=1)]
    if not vectors.with_variance:
        nodes.append(helper.make_node("Sub", [mean, mean], [variance]))
    if vectors.n_features is None:
        nodes.append(helper.make_node("Identity", [mean], [features]))
    lengths = vectors.dim, vectors.dim, vectors.n_features or vectors.dim
    graph = helper.make_graph(
        nodes,
        "declared",
        [helper.make_tensor_value_info(VECTORS_NAME, TensorProto.FLOAT, ["n", *vectors.shape])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
            for name, size in zip(OUTPUT_NAMES, lengths, strict=True)
        ],
        [numpy_helper.from_array(np.array([size for size in sizes if size], np.int64), "sizes")],
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(
        graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="vouch"
    )
    posterior = "given" if vectors.with_variance else "deterministic"
    helper.set_model_props(model, {METADATA_KEY: EncoderMetadata(vectors, posterior).to_json()})
    with writing(f"the encoder in {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            onnx.save(model, partial)
