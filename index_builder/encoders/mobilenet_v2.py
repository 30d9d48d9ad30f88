"""The built-in encoder: MobileNetV2, trained on ImageNet, as an ONNX file.

The encoder is the network of Sandler et al. 2018, up to the spatial mean of the last feature map,
with int8 weights and activations. `vouch-build encoder --torchvision mobilenet_v2 --weights
FILE.npz` writes the same network in float32. ONNX Runtime computes all convolutions with integers,
so an embedding has the same bits in every batch and on every processor. The graph is written node
by node, because torch takes seconds to import and to export.
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

PREPROCESSING = Preprocessing(224, 224, "cover", decoding="reduced", resized_side=232)
"""The preprocessing of torchvision's preset for MobileNetV2. Large JPEGs are decoded at reduced
size, because full decoding of a 12-megapixel photograph takes 25 times as long as encoding."""

OPSET = 18
IR_VERSION = 8

RANGES: Mapping[str, float] = {
    "features.1.conv.1": 22.0,
    "features.2.conv.2": 21.3,
    "features.3.conv.2": 26.3,
    "features.3": 28.0,
    "features.4.conv.2": 19.4,
    "features.5.conv.2": 18.8,
    "features.5": 22.0,
    "features.6.conv.2": 17.6,
    "features.6": 24.6,
    "features.7.conv.2": 17.2,
    "features.8.conv.2": 22.9,
    "features.8": 22.8,
    "features.9.conv.2": 12.9,
    "features.9": 21.4,
    "features.10.conv.2": 18.2,
    "features.10": 22.2,
    "features.11.conv.2": 12.9,
    "features.12.conv.2": 10.4,
    "features.12": 14.1,
    "features.13.conv.2": 17.4,
    "features.13": 20.6,
    "features.14.conv.2": 11.5,
    "features.15.conv.2": 8.72,
    "features.15": 13.9,
    "features.16.conv.2": 20.3,
    "features.16": 30.3,
    "features.17.conv.2": 9.77,
}
"""Quantisation ranges: for each projection, and for the sum in each block, the largest magnitude
that the quantised activation can represent. On 100 photographs of Caltech-101, one value in 10,000
is larger (`tests.benchmarks.bench_encoders`)."""

RELU6 = 6.0
"""The maximum activation. Quantisation clips values above this maximum, as ReLU6 does."""

_N_BLOCKS = 17
_STRIDED = {2, 4, 7, 14}
"""Indices, from 1, of the inverted residual blocks that halve height and width."""

_HALF_RANGE = 127.5
"""Half of the range of pixel values. The network's input for a pixel value x is x / 127.5 − 1."""

_ZERO = 128
"""The uint8 value that represents 0, for activations with negative and positive values."""

Weights = Mapping[str, NDArray[Any]]
"""The arrays of the .npz file, by name; see `ORIGIN.md`."""


def read_weights() -> Weights:
    """Read the weights in the package."""
    content = (resources.files("index_builder.encoders") / WEIGHTS_FILE).read_bytes()
    with np.load(BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def encoder_file(weights: Weights) -> bytes:
    """Return the content of the encoder's ONNX file; the same weights give the same bytes."""
    graph = _Graph(weights)
    mean, variance, features = OUTPUT_NAMES
    # The mean is float32, because an int8 mean would separate images less well.
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
    """Nodes and constants of the network, in the order of computation.

    Each activation is quantised and dequantised. ONNX Runtime merges the convolution and the nodes
    around it into one integer operator.

    Attributes
    ----------
    scales : quantisation step of each activation, by the activation's name.
    """

    weights: Weights
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    scales: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        operator: str,
        inputs: list[str],
        output: str,
        **attributes: Any,  # noqa: ANN401 - onnx's
    ) -> str:
        """Add a node and return the name of its output."""
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def feature_map(self) -> str:
        """Add all nodes from the images to the last feature map (B, 1280, 7, 7)."""
        self._described("pixels", 1 / _HALF_RANGE, _ZERO)
        self.add("Transpose", [INPUT_NAME], "pixels.q", perm=[0, 3, 1, 2])
        last = self._convolved("features.0.0", "pixels", stride=2)
        for number in range(1, _N_BLOCKS + 1):
            last = self._block(f"features.{number}", last, 2 if number in _STRIDED else 1)
        return self._dequantised(self._convolved("features.18.0", last))

    def _block(self, block: str, last: str, stride: int) -> str:
        """Add an inverted residual block: expansion, depthwise convolution, projection."""
        taken = last
        expanded = f"{block}.conv.2.q" in self.weights  # the first block has no expansion
        if expanded:
            last = self._convolved(f"{block}.conv.0.0", last)
        last = self._convolved(f"{block}.conv.{int(expanded)}.0", last, stride)
        projection = f"{block}.conv.{1 + expanded}"
        last = self._convolved(projection, last)
        n_in = self.weights[f"{block}.conv.0.0.q"].shape[1 if expanded else 0]
        if stride > 1 or n_in != len(self.weights[f"{projection}.q"]):
            return last
        self.add("Add", [self._dequantised(taken), self._dequantised(last)], block)
        return self._quantised(block)

    def _convolved(self, layer: str, last: str, stride: int = 1) -> str:
        """Add a convolution and its ReLU6. The projections, listed in `RANGES`, have no ReLU6."""
        weight, scale = self.weights[f"{layer}.q"], self.weights[f"{layer}.scale"]
        bias = self.weights[f"{layer}.bias"].astype(np.float64)
        if last == "pixels":  # 127.5, the middle of pixels, is not a uint8 value
            sums = (weight * scale.astype(np.float64).reshape(-1, 1, 1, 1)).sum((1, 2, 3))
            bias += (_ZERO / _HALF_RANGE - 1) * sums
        step = np.float32(self.scales[last]) * scale
        inputs = [
            self._dequantised(last),
            self._of_channels(f"{layer}.weight", weight, scale),
            self._of_channels(f"{layer}.bias", np.round(bias / step).astype(np.int32), step),
        ]
        padding = [0, 0, 0, 0]
        if weight.shape[-1] == 3:  # TensorFlow pads a strided convolution only at the end
            padding = [1, 1, 1, 1] if stride == 1 else [0, 0, 1, 1]
        group = len(weight) if weight.shape[1] == 1 else 1
        self.add("Conv", inputs, layer, strides=[stride, stride], pads=padding, group=group)
        return self._quantised(layer)

    def _quantised(self, name: str) -> str:
        """Add the quantisation of an activation, and return its name."""
        if name in RANGES:
            self._described(name, RANGES[name] / (_ZERO - 1), _ZERO)
        else:
            self._described(name, RELU6 / 255, 0)
        self.add("QuantizeLinear", [name, f"{name}.scale", f"{name}.zero"], f"{name}.q")
        return name

    def _dequantised(self, name: str) -> str:
        """Add a dequantisation of an activation, as input of one operator."""
        inputs = [f"{name}.q", f"{name}.scale", f"{name}.zero"]
        return self.add("DequantizeLinear", inputs, f"{name}.{len(self.nodes)}")

    def _of_channels(self, name: str, value: NDArray[Any], scale: NDArray[Any]) -> str:
        """Add a quantised constant with one scale for each output channel."""
        self._constant(f"{name}.q", value)
        self._constant(f"{name}.scale", scale)
        self._constant(f"{name}.zero", np.zeros(len(value), value.dtype))
        inputs = [f"{name}.q", f"{name}.scale", f"{name}.zero"]
        return self.add("DequantizeLinear", inputs, name, axis=0)

    def _described(self, name: str, scale: float, zero: int) -> None:
        """Add the scale of an activation, and the uint8 value that represents 0."""
        self.scales[name] = scale
        self._constant(f"{name}.scale", np.float32(scale))
        self._constant(f"{name}.zero", np.uint8(zero))

    def _constant(self, name: str, value: ArrayLike) -> None:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
