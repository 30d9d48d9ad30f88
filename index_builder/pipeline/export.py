"""Exports a trained encoder and its posterior to ONNX; see `model_store.encoder.onnx`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx.utils
import torch
from onnx import compose, helper, version_converter
from torch import Tensor, nn
from torch.onnx.errors import UnsupportedOperatorError

from index_builder.networks import MetricEncoder
from index_builder.networks.graph_trunk import GraphTrunkEncoder
from index_builder.posteriors import ProbabilisticEncoder
from index_builder.vectors.halves import (
    FEATURES,
    HEAD_KEY,
    TRUNK_KEY,
    OnnxHead,
    OnnxTrunk,
    head_metadata,
)
from index_builder.vectors.opened import encoder_on_cpu, opened_once
from model_store.encoder.contract import (
    INPUT_NAME,
    METADATA_KEY,
    OUTPUT_NAMES,
    EncoderMetadata,
    Inputs,
)
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import ParityError
from model_store.files import replacing

OPSET = 18
"""Version of ONNX's operators; ONNX Runtime supports this version since 1.14."""

PARITY_BATCHES = (1, 2, 5)
"""Batch sizes for which the exported file must agree with torch. The exporter traces a batch of two
images. An exporter can specialise the graph to this size. So a smaller and a larger batch are also
tested."""

PARITY_TOLERANCES = dict(zip(OUTPUT_NAMES, (1e-5, 1e-4, 1e-5), strict=True))
"""Maximum difference from torch, divided by the largest value of the output. If float32 values are
summed in another order, the sum changes by 1e-6. A variance can be a small difference between two
such sums, so it changes by up to 1e-5."""


def export_encoder(
    encoder: nn.Module,
    path: Path,
    metadata: EncoderMetadata,
    images: Inputs,
) -> float:
    """Write ``encoder`` as ONNX to ``path``; return the largest relative difference from torch.

    Parameters
    ----------
    encoder : module that maps images (B, H, W, 3) uint8 to embedding mean, embedding variance and
        features; see `index_builder.posteriors.encoders`.
    images : at least 5 real images, (n, H, W, 3) uint8, or vectors, to measure parity.

    Raises
    ------
    ParityError : for a batch size in `PARITY_BATCHES`, the outputs differ from those of torch. The
        file is removed.
    """
    file = _graph(encoder, images)
    onnx.helper.set_model_props(file, {METADATA_KEY: metadata.to_json()})
    with replacing(path) as staged:
        staged.write_bytes(file.SerializeToString(deterministic=True))
        differences = parity(encoder, encoder_on_cpu(staged), images)
        for name, difference in differences.items():
            if not difference <= PARITY_TOLERANCES[name]:
                raise ParityError(
                    f"{name} of the exported encoder differs from the trained one by "
                    f"{difference:.2e} of its largest value; at most {PARITY_TOLERANCES[name]:.0e} "
                    "is accepted. Nothing was written."
                )
    return max(differences.values())


def export_trunk(encoder: MetricEncoder, path: Path, metadata: str, images: Inputs) -> None:
    """Write the trunk of ``encoder``, which maps images to features, as ONNX to ``path``.

    Parameters
    ----------
    metadata : see `trunk_metadata`.
    images : see `export_encoder`.

    Raises
    ------
    ParityError : the features differ from those of torch. The file is removed.
    """
    file = _trunk_graph(encoder, torch.from_numpy(images[:2]))
    onnx.helper.set_model_props(file, {TRUNK_KEY: metadata})
    staged = path.with_suffix(".partial")
    staged.write_bytes(file.SerializeToString(deterministic=True))
    if isinstance(encoder, GraphTrunkEncoder):  # torch has no part in it
        staged.rename(path)
        return
    with torch.inference_mode():
        wanted = encoder.features(torch.from_numpy(images)).numpy()
    found = opened_once(OnnxTrunk, staged).features(images)
    difference = np.abs(found - wanted).max() / np.abs(wanted).max()
    if not difference <= PARITY_TOLERANCES[FEATURES]:
        staged.unlink()
        raise ParityError(
            f"The features of the exported trunk differ from torch's by {difference:.2e} of the "
            f"largest; at most {PARITY_TOLERANCES[FEATURES]:.0e} is accepted. Nothing was written."
        )
    staged.rename(path)


def export_head(encoder: Path, trunk: Path, path: Path, images: Inputs) -> bool:
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
    onnx.helper.set_model_props(file, {HEAD_KEY: metadata})
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


def _graph(encoder: nn.Module, images: Inputs) -> onnx.ModelProto:
    """Return the graph of a whole encoder."""
    two = torch.from_numpy(images[:2])
    if isinstance(encoder, ProbabilisticEncoder) and isinstance(encoder.encoder, GraphTrunkEncoder):
        features = encoder.encoder.features(two)
        trunk = _trunk_graph(encoder.encoder, two)
        opset = min(OPSET, operator_version(trunk))
        head = traced(
            _Head(encoder), (features,), OUTPUT_NAMES[:2], (FEATURES,), opset, is_whole=False
        )
        return joined(trunk, head)
    return traced(encoder, (two,), OUTPUT_NAMES)


def _trunk_graph(encoder: MetricEncoder, two: Tensor) -> onnx.ModelProto:
    """Return the graph from pixels to features."""
    if not isinstance(encoder, GraphTrunkEncoder):
        return traced(_Trunk(encoder), (two,), (FEATURES,))
    graph = onnx.ModelProto()
    graph.CopyFrom(encoder.trunk.graph)
    del graph.metadata_props[:]
    return graph


def traced(
    module: nn.Module,
    examples: tuple[Tensor, ...],
    outputs: Sequence[str],
    inputs: Sequence[str] = (INPUT_NAME,),
    opset: int = OPSET,
    *,
    is_whole: bool = True,
) -> onnx.ModelProto:
    """Return the graph of ``module``; it accepts any batch size.

    For MobileNetV2, tracing takes 0.5 s and optimising 0.25 s. The exporter with `torch.export`
    takes 11 s. The exporter with `torch.export` is therefore used only if tracing does not support
    an operator of the module.

    Parameters
    ----------
    examples : inputs of the module for a batch of two images.
    is_whole : whether the module is a whole network. Only a whole network is optimised, because
        importing the optimiser takes a second.
    """
    module.eval()
    with TemporaryDirectory() as scratch, warnings.catch_warnings():
        path = Path(scratch) / "traced.onnx"
        warnings.simplefilter("ignore")  # hide warnings about the internals of the exporters
        options: dict[str, Any] = {
            "input_names": list(inputs),
            "output_names": list(outputs),
            "opset_version": opset,
            "verbose": False,
        }
        batch = {name: {0: "batch"} for name in (*inputs, *outputs)}
        try:
            torch.onnx.export(module, examples, path, dynamic_axes=batch, dynamo=False, **options)
        except UnsupportedOperatorError:
            any_batch = tuple({0: torch.export.Dim("batch")} for _ in examples)
            torch.onnx.export(
                module, examples, path, dynamic_shapes=any_batch, dynamo=True, **options
            )
        file = onnx.load(path)
    if is_whole:
        file = optimised(file)
    _strip_traces(file)
    return file


def optimised(file: onnx.ModelProto) -> onnx.ModelProto:
    """Fold constants and simplify the graph; otherwise, inference would take a fifth longer.

    The passes are those of `onnxscript.optimizer.optimize` without one rule, which joins two slices
    of a tensor. The rule compares all pairs of nodes; for a vision transformer, the rule takes nine
    tenths of the time.
    """
    from onnxscript import ir, optimizer, rewriter  # noqa: PLC0415 - slow
    from onnxscript.rewriter.rules.common import slice_split_rule  # noqa: PLC0415 - slow

    rules = [rule for rule in rewriter._DEFAULT_REWRITE_RULES if rule is not slice_split_rule]
    model = ir.serde.deserialize_model(file)
    optimizer.inline(model)
    for _ in range(2):  # after simplification, more constants can be folded
        optimizer.fold_constants_ir(model, onnx_shape_inference=True)
        rewriter.RewritePass(rules)(model)
        ir.passes.common.RemoveUnusedNodesPass()(model)
    ir.passes.Sequential(
        ir.passes.common.RemoveUnusedOpsetsPass(),
        ir.passes.common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        ir.passes.common.LiftSubgraphInitializersToMainGraphPass(),
        ir.passes.common.DeduplicateInitializersPass(),
        ir.passes.common.CommonSubexpressionEliminationPass(),
        ir.passes.common.OutputFixPass(),
        ir.passes.common.NameFixPass(),
    )(model)
    return ir.serde.serialize_model(model)


def parity(encoder: nn.Module, exported: OnnxEncoder, images: Inputs) -> dict[str, float]:
    """For each output, return the largest difference from torch, divided by the largest value."""
    worst = dict.fromkeys(OUTPUT_NAMES, 0.0)
    for size in PARITY_BATCHES:
        with torch.inference_mode():
            wanted = encoder(torch.from_numpy(images[:size]))
        got = exported.encode(images[:size])
        outputs = (got.mean, got.variance, got.features)
        for name, ours, theirs in zip(OUTPUT_NAMES, outputs, wanted, strict=True):
            reference = theirs.numpy()
            difference = np.abs(ours - reference).max() / max(np.abs(reference).max(), 1e-12)
            worst[name] = float(np.maximum(worst[name], difference))  # NaN if one value is NaN
    return worst


def _strip_traces(file: onnx.ModelProto) -> None:
    """Remove the source-code locations that the exporter writes into the graph.

    The locations contain paths of the build machine, which would change the hash of the file.
    """
    graphs = [file.graph, *file.functions]
    for graph in graphs:
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        for value in getattr(graph, "value_info", ()):
            del value.metadata_props[:]
    for value in [*file.graph.input, *file.graph.output, *file.graph.initializer]:
        del value.metadata_props[:]
    del file.graph.metadata_props[:]
    del file.metadata_props[:]


class _Head(nn.Module):
    """Features to mean and variance."""

    def __init__(self, encoder: ProbabilisticEncoder) -> None:
        super().__init__()
        self.posterior = encoder.posterior

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.posterior.predict(features)


class _Trunk(nn.Module):
    """Images to features."""

    def __init__(self, encoder: MetricEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder.features(images)


_FEATURES = OUTPUT_NAMES[2]


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
    trunk = _prefixed(trunk, "trunk/", {trunk.graph.input[0].name, _FEATURES})
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
