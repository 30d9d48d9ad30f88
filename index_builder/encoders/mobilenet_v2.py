"""The encoder in the box: MobileNetV2, trained on ImageNet, as an ONNX file of Vouch's contract.

The graph is written node by node with `onnx.helper`, because torch takes seconds to import and to
export. It computes what `vouch-build encoder --torchvision mobilenet_v2 --weights FILE.npz` writes:
Sandler et al. 2018, up to the spatial mean of the last feature map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from model_store.encoder.contract import INPUT_NAME, METADATA_KEY, OUTPUT_NAMES, EncoderMetadata
from model_store.images import Preprocessing

N_FEATURES = 1280

WEIGHTS_FILE = "mobilenet_v2_imagenet_int8.npz"

PREPROCESSING = Preprocessing(224, 224, "cover", resized_side=232)
"""The preprocessing of torchvision's preset for MobileNetV2."""

OPSET = 18
IR_VERSION = 8

_N_BLOCKS = 17
_STRIDED = {2, 4, 7, 14}
"""Numbers of the inverted residual blocks that halve height and width."""

Weights = Mapping[str, NDArray[Any]]
"""The arrays of the .npz file by their names; see `ORIGIN.md`."""


def read_weights() -> Weights:
    """Read the weights that come with the package."""
    content = (resources.files("index_builder.encoders") / WEIGHTS_FILE).read_bytes()
    with np.load(BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def encoder_file(weights: Weights) -> bytes:
    """Return the content of the encoder's ONNX file; the same weights give the same bytes."""
    graph = _Graph(weights)
    features, variance, mean = OUTPUT_NAMES[2], OUTPUT_NAMES[1], OUTPUT_NAMES[0]
    graph.add("GlobalAveragePool", [graph.feature_map()], "pooled")
    graph.add("Flatten", ["pooled"], features)
    graph.add("Identity", [features], mean)
    graph.add("Shape", [features], "shape")
    graph.add("ConstantOfShape", ["shape"], variance)
    shape: list[str | int] = ["batch", *PREPROCESSING.shape]
    made = helper.make_graph(
        graph.nodes,
        "mobilenet_v2",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", N_FEATURES])
            for name in OUTPUT_NAMES
        ],
        graph.constants,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    metadata = EncoderMetadata(PREPROCESSING, "deterministic")
    helper.set_model_props(model, {METADATA_KEY: metadata.to_json()})
    content: bytes = model.SerializeToString(deterministic=True)
    return content


@dataclass
class _Graph:
    """Nodes and constants of the network, in the order in which they are computed."""

    weights: Weights
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:  # noqa: ANN401
        """Add a node and return the name of its output."""
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, name: str, value: ArrayLike) -> str:
        """Add a constant and return its name."""
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def feature_map(self) -> str:
        """Add everything from the images to the last feature map (B, 1280, 7, 7)."""
        self.constant("zero", np.float32(0))
        self.constant("six", np.float32(6))
        last = self._convolved("features.0.0", self._standardised(), stride=2)
        for number in range(1, _N_BLOCKS + 1):
            last = self._block(f"features.{number}", last, 2 if number in _STRIDED else 1)
        return self._convolved("features.18.0", last)

    def _standardised(self) -> str:
        """Add the nodes from uint8 (B, H, W, 3) to float32 (B, 3, H, W) in [−1, 1]."""
        self.add("Transpose", [INPUT_NAME], "planes", perm=[0, 3, 1, 2])
        self.add("Cast", ["planes"], "float", to=TensorProto.FLOAT)
        self.add("Div", ["float", self.constant("half_range", np.float32(127.5))], "scaled")
        return self.add("Sub", ["scaled", self.constant("one", np.float32(1))], "standardised")

    def _block(self, block: str, last: str, stride: int) -> str:
        """Add an inverted residual block: expansion, depthwise convolution, projection."""
        taken = last
        expanded = f"{block}.conv.2.q" in self.weights  # the first block has no expansion
        if expanded:
            last = self._convolved(f"{block}.conv.0.0", last)
        last = self._convolved(f"{block}.conv.{int(expanded)}.0", last, stride)
        projection = f"{block}.conv.{1 + expanded}"
        last = self._convolved(projection, last, activated=False)
        n_in = self.weights[f"{block}.conv.0.0.q"].shape[1 if expanded else 0]
        if stride == 1 and n_in == len(self.weights[f"{projection}.q"]):
            return self.add("Add", [taken, last], block)
        return last

    def _convolved(self, layer: str, last: str, stride: int = 1, *, activated: bool = True) -> str:
        """Add a convolution and, where it has one, its ReLU6."""
        quantised = self.weights[f"{layer}.q"].astype(np.float32)
        weight = quantised * self.weights[f"{layer}.scale"].reshape(-1, 1, 1, 1)
        padding = [0, 0, 0, 0]
        if quantised.shape[-1] == 3:  # TensorFlow pads a strided convolution at the end alone
            padding = [1, 1, 1, 1] if stride == 1 else [0, 0, 1, 1]
        inputs = [
            last,
            self.constant(f"{layer}.weight", weight),
            self.constant(f"{layer}.bias", self.weights[f"{layer}.bias"]),
        ]
        group = len(quantised) if quantised.shape[1] == 1 else 1
        self.add("Conv", inputs, layer, strides=[stride, stride], pads=padding, group=group)
        return self.add("Clip", [layer, "zero", "six"], f"{layer}.6") if activated else layer
