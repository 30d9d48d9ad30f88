"""ONNX graphs of encoders, without torch: joined, compared with their source, and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.utils
from numpy.typing import NDArray
from onnx import compose, helper, numpy_helper, version_converter

from index_builder.arrays import to_numpy
from index_builder.posteriors.laplace.kronecker_posterior import COLUMNS, KroneckerPosterior
from index_builder.vectors.encoder import (
    FEATURES,
    HEAD_KEY,
    TRUNK_KEY,
    OnnxHead,
    OnnxTrunk,
    head_metadata,
)
from index_builder.vectors.encoder_file import encoder_on_cpu, opened_once
from model_store.encoder.contract import METADATA_KEY, OUTPUT_NAMES, EncoderMetadata, Inputs
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import ParityError
from model_store.files import replacing

OPSET = 18
"""Version of ONNX's operators; ONNX Runtime supports this version since 1.14."""

PARITY_BATCHES = (1, 2, 5)
"""Batch sizes for which the written file must agree with its source. An exporter traces a
batch of two images, and can specialise the graph to this size. So a smaller and a larger batch are
also tested."""

PARITY_TOLERANCES = dict(zip(OUTPUT_NAMES, (1e-5, 1e-4, 1e-5), strict=True))
"""Maximum difference, divided by the largest value of the output. If float32 values are summed in
another order, the sum changes by 1e-6. A variance can be a small difference between two such sums,
so it changes by up to 1e-5."""

Outputs = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Embedding mean and variance (B, D), and features (B, F)."""


def write_encoder(
    graph: onnx.ModelProto,
    path: Path,
    metadata: EncoderMetadata,
    computed: Callable[[Inputs], Outputs],
    images: Inputs,
) -> float:
    """Write the graph of an encoder to ``path``; return the largest relative difference.

    Parameters
    ----------
    computed : what the graph stands for: images (B, H, W, 3) uint8, or vectors, to `Outputs`.
    images : at least 5 real images, (n, H, W, 3) uint8, or vectors, to measure parity.

    Raises
    ------
    ParityError : for a batch size in `PARITY_BATCHES`, the outputs differ from ``computed``. The
        file is removed.
    """
    helper.set_model_props(graph, {METADATA_KEY: metadata.to_json()})
    with replacing(path) as staged:
        staged.write_bytes(graph.SerializeToString(deterministic=True))
        differences = parity(computed, encoder_on_cpu(staged), images)
        for name, difference in differences.items():
            if not difference <= PARITY_TOLERANCES[name]:
                raise ParityError(
                    f"{name} of the exported encoder differs from the trained one by "
                    f"{difference:.2e} of its largest value; at most {PARITY_TOLERANCES[name]:.0e} "
                    "is accepted. Nothing was written."
                )
    return max(differences.values())


def parity(
    computed: Callable[[Inputs], Outputs], exported: OnnxEncoder, images: Inputs
) -> dict[str, float]:
    """For each output, return the largest difference, divided by the largest value."""
    worst = dict.fromkeys(OUTPUT_NAMES, 0.0)
    for size in PARITY_BATCHES:
        got = exported.encode(images[:size])
        outputs = (got.mean, got.variance, got.features)
        wanted = computed(images[:size])
        for name, ours, reference in zip(OUTPUT_NAMES, outputs, wanted, strict=True):
            difference = np.abs(ours - reference).max() / max(np.abs(reference).max(), 1e-12)
            worst[name] = float(np.maximum(worst[name], difference))  # NaN if one value is NaN
    return worst


def staged_trunk(graph: onnx.ModelProto, path: Path, metadata: str) -> Path:
    """Write the graph of a trunk beside ``path``; return where, so that the caller can rename it.

    Parameters
    ----------
    metadata : see `trunk_metadata`.
    """
    helper.set_model_props(graph, {TRUNK_KEY: metadata})
    staged = path.with_suffix(".partial")
    staged.write_bytes(graph.SerializeToString(deterministic=True))
    return staged


def write_head(encoder: Path, trunk: Path, path: Path, images: Inputs) -> bool:
    """Write the head of ``encoder``; return whether the head was written.

    The head maps features to embeddings. The head is written if the embedding depends only on the
    features, and if trunk and head reproduce the embedding bit for bit.
    """
    path.unlink(missing_ok=True)
    file = onnx.utils.Extractor(onnx.load(encoder)).extract_model(
        [FEATURES], list(OUTPUT_NAMES[:2])
    )
    served = encoder_on_cpu(encoder)
    if any(served.metadata.input_name in node.input for node in file.graph.node):
        return False  # the embedding also depends on the image
    metadata = head_metadata(served.fingerprint, trunk.read_bytes())
    helper.set_model_props(file, {HEAD_KEY: metadata})
    staged = path.with_suffix(".partial")
    staged.write_bytes(file.SerializeToString(deterministic=True))
    wanted = served.encode(images)
    got = opened_once(OnnxHead, staged).embeddings(opened_once(OnnxTrunk, trunk).features(images))
    same = all(
        np.array_equal(getattr(got, one.name), getattr(wanted, one.name)) for one in fields(got)
    )
    if same:
        staged.rename(path)
    else:
        staged.unlink()
    return same


def kronecker_head(posterior: KroneckerPosterior, opset: int) -> onnx.ModelProto:
    """Return the graph of ``posterior``: features (B, F) to embedding mean and variance (B, D).

    The graph computes `KroneckerPosterior.predict`. The column of the bias is kept apart from the
    features: with φ̃ = (φ, 1) and S = (S_F, s), φ̃ S U = φ S_F U_F + s u. Its operators exist since
    version 7 of ONNX's operators.

    Parameters
    ----------
    opset : version of ONNX's operators.
    """
    dim, n_features = posterior.weight_mean.shape
    scale, directions = to_numpy(posterior.feature_scale), to_numpy(posterior.directions)
    bias_direction = scale[-1] * directions[-1]
    constants = {
        "weight": to_numpy(posterior.weight_mean),
        "bias": to_numpy(posterior.bias_mean),
        "scale": scale[:-1],
        "directions": directions[:-1],
        "bias_direction": bias_direction,
        "direction_variance": _as_columns(to_numpy(posterior.direction_variance)),
        "output_variance": to_numpy(posterior.output_variance)[None],
        "first": np.zeros(1, dtype=np.int64),
    }
    mean, variance = OUTPUT_NAMES[:2]
    node = helper.make_node
    nodes = [
        node("Gemm", [FEATURES, "weight", "bias"], [mean], transB=1),
        node("Mul", [FEATURES, "scale"], ["scaled"]),
        node("Gemm", ["scaled", "directions", "bias_direction"], ["coordinates"]),
        node("Mul", ["coordinates", "coordinates"], ["squares"]),
        node("MatMul", ["squares", "direction_variance"], ["along"]),
    ]
    total = "along"
    if directions.shape[0] > directions.shape[1]:
        rest = float(to_numpy(posterior.rest_variance))
        width = scale.dtype.type
        constants |= {
            "back": np.ascontiguousarray(directions[:-1].T),
            "bias_back": _as_columns(directions[-1]),
            "bias_scale": np.full((1, COLUMNS), scale[-1], dtype=width),
            "rest_variance": np.full((n_features, COLUMNS), rest, dtype=width),
            "rest_of_bias": np.full((1, COLUMNS), rest, dtype=width),
        }
        nodes += [
            node("MatMul", ["coordinates", "back"], ["inside"]),
            node("Sub", ["scaled", "inside"], ["outside"]),
            node("Mul", ["outside", "outside"], ["outside_squares"]),
            node("MatMul", ["outside_squares", "rest_variance"], ["across"]),
            node("MatMul", ["coordinates", "bias_back"], ["bias_inside"]),
            node("Sub", ["bias_scale", "bias_inside"], ["bias_outside"]),
            node("Mul", ["bias_outside", "bias_outside"], ["bias_squares"]),
            node("Mul", ["bias_squares", "rest_of_bias"], ["across_bias"]),
            node("Add", ["along", "across"], ["of_features"]),
            node("Add", ["of_features", "across_bias"], ["total"]),
        ]
        total = "total"
    nodes += [
        node("Gather", [total, "first"], ["factor"], axis=1),
        node("Mul", ["factor", "output_variance"], [variance]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "head",
        [value(FEATURES, onnx.TensorProto.FLOAT, ["batch", n_features])],
        [value(name, onnx.TensorProto.FLOAT, ["batch", dim]) for name in (mean, variance)],
        [numpy_helper.from_array(one, name) for name, one in constants.items()],
    )
    versions = [helper.make_opsetid("", opset)]
    ir_version = helper.find_min_ir_version_for(versions)
    return helper.make_model(graph, opset_imports=versions, ir_version=ir_version)


def _as_columns(vector: NDArray[Any]) -> NDArray[Any]:
    return np.tile(vector[:, None], (1, COLUMNS))


def joined(trunk: onnx.ModelProto, head: onnx.ModelProto) -> onnx.ModelProto:
    """Return one graph: ``trunk``, from input to features, followed by ``head``.

    The features of the graph are bit-identical to those of the trunk. The graph and the trunk have
    the same version of ONNX's operators.

    Parameters
    ----------
    head : graph from features to embedding mean and variance. The operator version of the head must
        not be newer than that of the trunk.
    """
    # If the trunk was extracted from an encoder, its features may depend on an embedding mean.
    trunk = _prefixed(trunk, "trunk/", {trunk.graph.input[0].name, FEATURES})
    if operator_version(head) < operator_version(trunk):
        head = version_converter.convert_version(head, operator_version(trunk))
    head = _prefixed(head, "head/", set(OUTPUT_NAMES))
    body = trunk.graph
    graph = helper.make_graph(
        [*body.node, *head.graph.node],
        "encoder",
        list(body.input),
        [*head.graph.output, *body.output],
        [*body.initializer, *head.graph.initializer],
        sparse_initializer=list(body.sparse_initializer),
    )
    others = [one for one in head.opset_import if one.domain not in {"", "ai.onnx"}]
    return helper.make_model(
        graph,
        opset_imports=[*trunk.opset_import, *others],
        functions=[*trunk.functions, *head.functions],
        ir_version=max(trunk.ir_version, head.ir_version),
    )


def _prefixed(model: onnx.ModelProto, prefix: str, kept: set[str]) -> onnx.ModelProto:
    """Return ``model`` with a prefix before every name that is not in ``kept``."""
    model = compose.add_prefix(model, prefix)
    outer = {prefix + name: name for name in kept}
    for node in model.graph.node:
        node.input[:] = [outer.get(name, name) for name in node.input]
        node.output[:] = [outer.get(name, name) for name in node.output]
    for value in [*model.graph.input, *model.graph.output]:
        value.name = outer.get(value.name, value.name)
    return model


def operator_version(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators."""
    return max(int(one.version) for one in model.opset_import if one.domain in {"", "ai.onnx"})
