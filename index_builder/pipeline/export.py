"""Exports a trained encoder and its posterior to ONNX; see `model_store.encoder.onnx`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.onnx.errors import UnsupportedOperatorError

from index_builder.networks import MetricEncoder
from index_builder.networks.encoder import GraphTrunkEncoder
from index_builder.pipeline.graphs import (
    OPSET,
    PARITY_TOLERANCES,
    Outputs,
    joined,
    kronecker_head,
    operator_version,
    staged_trunk,
    write_encoder,
)
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.stored import ProbabilisticEncoder
from index_builder.vectors.encoder import FEATURES, OnnxTrunk
from index_builder.vectors.encoder_file import opened_once
from model_store.encoder.contract import INPUT_NAME, OUTPUT_NAMES, EncoderMetadata, Inputs
from model_store.errors import ParityError


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
        features; see `index_builder.posteriors.stored`.
    images : at least 5 real images, (n, H, W, 3) uint8, or vectors, to measure parity.

    Raises
    ------
    ParityError : for a batch size in `PARITY_BATCHES`, the outputs differ from those of torch. The
        file is removed.
    """

    def computed(some: Inputs) -> Outputs:
        with torch.inference_mode():
            mean, variance, features = encoder(torch.from_numpy(some))
        return mean.numpy(), variance.numpy(), features.numpy()

    return write_encoder(_graph(encoder, images), path, metadata, computed, images)


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
    staged = staged_trunk(file, path, metadata)
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


def _graph(encoder: nn.Module, images: Inputs) -> onnx.ModelProto:
    """Return the graph of a whole encoder."""
    two = torch.from_numpy(images[:2])
    if isinstance(encoder, ProbabilisticEncoder) and isinstance(encoder.encoder, GraphTrunkEncoder):
        features = encoder.encoder.features(two)
        trunk = _trunk_graph(encoder.encoder, two)
        opset = min(OPSET, operator_version(trunk))
        if isinstance(encoder.posterior, KroneckerPosterior):
            return joined(trunk, kronecker_head(encoder.posterior, opset))
        head = traced(
            _Head(encoder), (features,), OUTPUT_NAMES[:2], (FEATURES,), opset, is_whole=False
        )
        return joined(trunk, head)
    return traced(encoder, (two,), OUTPUT_NAMES)


def _trunk_graph(encoder: MetricEncoder, two: Tensor) -> onnx.ModelProto:
    """Return the graph from pixels to features."""
    if not isinstance(encoder, GraphTrunkEncoder):
        return traced(_Trunk(encoder), (two,), (FEATURES,))
    return encoder.trunk.frozen.graph()


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
