"""Joins a trunk and a head into one ONNX graph."""

from __future__ import annotations

import onnx
from onnx import compose, helper, version_converter

from model_store.encoder.contract import OUTPUT_NAMES

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
