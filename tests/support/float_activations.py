"""The encoder in the box without the quantisation of its activations."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from index_builder.encoders.mobilenet_v2 import RANGES, RELU6


def in_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float32 activations: clipped by ReLU6, or as they are.

    Each convolution's output, and each block's sum, has the name that it has in ``model``.
    """
    signed = {f"{name}.zero" for name in RANGES}
    replaced: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            operator, inputs = "Clip", [node.input[0], "low", "high"]
            if node.input[2] in signed:
                operator, inputs = "Identity", inputs[:1]
            replaced[node.output[0]] = f"{node.output[0]}.float"
            nodes.append(helper.make_node(operator, inputs, [replaced[node.output[0]]]))
        elif node.op_type == "DequantizeLinear" and node.input[0] in replaced:
            nodes.append(helper.make_node("Identity", [replaced[node.input[0]]], node.output))
        else:
            nodes.append(node)
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    for name, value in (("low", 0), ("high", RELU6)):
        found.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return found
