"""Adds nodes before and after a foreign ONNX graph, to meet Vouch's encoder contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper, numpy_helper
from PIL import Image

from index_builder.foreign_encoders.choices import GEM_EXPONENT, GEM_FLOOR, InputFormat, Pooling
from index_builder.foreign_encoders.parity import Reference
from model_store.encoder.contract import INPUT_NAME, METADATA_KEY, OUTPUT_NAMES, EncoderMetadata
from model_store.encoder.onnx import open_graph, reason_of
from model_store.errors import EncoderSourceError
from model_store.images import content_of
from model_store.images.containers import text_in_place_of_image

_PREFIX = "foreign/"
_MOST_BYTES = 2**31 - 1
"""Maximum size of a protocol buffer file in bytes."""

_OTHER_MODELS = (
    (0, b"PK\x03\x04", "a ZIP archive, such as a checkpoint of PyTorch"),
    (0, b"\x80\x02", "a pickle, such as a checkpoint of PyTorch"),
    (0, b"\x80\x04", "a pickle, such as a checkpoint of PyTorch"),
    (0, b"\x80\x05", "a pickle, such as a checkpoint of PyTorch"),
    (4, b"TFL3", "TensorFlow Lite"),
    (4, b"ORTM", "a model in the ORT format"),
    (8, b'{"', "safetensors, which hold weights and no graph"),
    (0, b"\x89HDF", "HDF5, such as a model of Keras"),
    (0, b"ftrtNGN", "a TensorRT engine"),
)
"""Offset, magic bytes and name of other model formats."""

_LEAST_OPSET = 9
"""Minimum version of ONNX's operators; the added nodes need this version."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_AXES_ARE_INPUT = 18
"""From this operator version, ReduceMean takes its axes as an input."""


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """A graph, and the output of the graph that gives the vector of an image.

    Attributes
    ----------
    model : the unchanged model.
    images : the graph's input for images.
    found : the graph's output from which the vector is computed.
    pooling : pooling of tokens or of a feature map.
    n_prefix : number of tokens before the first patch.
    """

    model: onnx.ModelProto
    images: onnx.ValueInfoProto
    found: onnx.ValueInfoProto
    pooling: Pooling
    n_prefix: int

    @property
    def channels_last(self) -> bool:
        """True if the graph takes (B, H, W, 3), False for (B, 3, H, W)."""
        return _shape(self.images)[1] != 3

    @property
    def rank(self) -> int:
        """Number of output dimensions: 2 for a vector, 3 for tokens, 4 for a feature map."""
        return len(_shape(self.found))


def read_graph(path: Path, output: str | None, pooling: Pooling, n_prefix: int) -> ForeignGraph:
    """Read a foreign graph; find its input for images, and the output that gives the vector.

    Parameters
    ----------
    output : name of the output that gives the vector; None if only one output fits.
    n_prefix : number of tokens before the first patch: class token and registers.

    Raises
    ------
    EncoderSourceError : the file is not ONNX, or the graph cannot be wrapped. The message lists the
        graph's inputs and outputs, and the wanted inputs and outputs.
    """
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise EncoderSourceError(f"{path} cannot be read: {error.strerror}.") from error
    _require_no_other_file(path, head)
    try:
        model = onnx.load(path)
    except Exception as error:  # errors of protocol buffers and of the system
        if type(error).__name__ == "DecodeError":  # its message names no cause
            raise EncoderSourceError(
                f"{path.name} is not a complete ONNX graph ({path.stat().st_size:,} bytes). Copy "
                "or export the file again."
            ) from error
        raise EncoderSourceError(f"{path} cannot be read as ONNX: {error}") from error
    _require_opset(path, model)
    initialised = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in initialised]
    there = (
        f"{path.name} has the inputs {_described(inputs)} and the outputs "
        f"{_described(model.graph.output)}."
    )
    shape = _shape(inputs[0]) if len(inputs) == 1 else ()
    if len(shape) != 4 or 3 not in {shape[1], shape[3]} or _element(inputs[0]) not in _FLOATS:
        raise EncoderSourceError(
            f"{there} Wanted one input: images, (batch, 3, height, width) or "
            "(batch, height, width, 3), in float32 or float16. Export the graph with such an input."
        )
    if isinstance(shape[0], int) and shape[0] > 1:
        raise EncoderSourceError(
            f"{path.name} takes exactly {shape[0]} images at a time. Export the graph with a "
            "dynamic batch dimension (`dynamic_axes` or `dynamic_shapes` of torch.onnx.export)."
        )
    found = _vector(model.graph.output, output, pooling, there)
    return ForeignGraph(model, inputs[0], found, pooling, n_prefix)


def _require_no_other_file(path: Path, head: bytes) -> None:
    """Refuse a file that is not ONNX, and name its format.

    Raises
    ------
    EncoderSourceError
    """
    if not head:
        raise EncoderSourceError(f"{path.name} is empty (0 bytes). Copy or export the file again.")
    models = (name for place, magic, name in _OTHER_MODELS if head.startswith(magic, place))
    name, advice = next(models, ""), ""
    if not name and (other := content_of(head)) is not None:
        name, advice = other.name, other.advice
    elif not name and (text := text_in_place_of_image(head)) is not None:
        name = text.name
    if name:
        raise EncoderSourceError(
            f"{path.name} is not an ONNX graph, but {name}. {advice or 'Name the exported graph.'}"
        )


def _require_opset(path: Path, model: onnx.ModelProto) -> None:
    """Refuse operators that are too old for the added nodes.

    Raises
    ------
    EncoderSourceError
    """
    version = min((one.version for one in model.opset_import if not one.domain), default=0)
    if 0 < version < _LEAST_OPSET:
        raise EncoderSourceError(
            f"{path.name} has opset {version}; at least {_LEAST_OPSET} is needed. Export the "
            "graph with opset_version=17, for example."
        )


def _vector(
    outputs: Sequence[onnx.ValueInfoProto], name: str | None, pooling: Pooling, there: str
) -> onnx.ValueInfoProto:
    """Return the output that gives an image's vector; with pooling, return the output to pool."""
    plain = pooling is Pooling.default
    ranks = {2} if plain else {3, 4}
    fitting = [
        one
        for one in outputs
        if len(_shape(one)) in ranks and _element(one) in _FLOATS and name in {None, one.name}
    ]
    if len(fitting) != 1:
        wanted = (
            "a vector, (batch, F)"
            if plain
            else "tokens, (batch, N, F), or a feature map, (batch, F, H, W)"
        ) + ", in float32 or float16"
        called = "" if name is None else f" called {name!r}"
        raise EncoderSourceError(
            f"{there} Wanted one output{called} that is {wanted}; there are {len(fitting)}. "
            "`--output NAME` selects one; `--pooling` pools tokens or a feature map to a vector."
        )
    return fitting[0]


def graph_reference(graph: ForeignGraph, input_format: InputFormat) -> Reference:
    """Return a pipeline that runs the unchanged graph, with preprocessing and pooling in NumPy.

    Raises
    ------
    EncoderSourceError : ONNX Runtime does not run the graph.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    try:
        session = open_graph(model.SerializeToString(), "cpu")
    except Exception as error:  # ONNX Runtime's
        raise EncoderSourceError(f"ONNX Runtime cannot load the graph. {error}") from error
    type_of_input = np.float16 if _element(graph.images) == TensorProto.FLOAT16 else np.float32

    def vector(image: Image.Image) -> NDArray[np.float32]:
        pixels = input_format.preprocessing(np.asarray(image))
        standardised = input_format.standardised(pixels[None])
        if graph.channels_last:
            standardised = standardised.transpose(0, 2, 3, 1)
        feed = {graph.images.name: standardised.astype(type_of_input)}
        try:
            (found,) = session.run([graph.found.name], feed)
        except Exception as error:  # ONNX Runtime's
            raise EncoderSourceError(
                f"The graph does not run on one image. {reason_of(error)} If the batch size is "
                "fixed, export the graph with a dynamic batch dimension."
            ) from error
        return _pooled(found[0].astype(np.float32), graph)

    return vector


def _pooled(found: NDArray[np.float32], graph: ForeignGraph) -> NDArray[np.float32]:
    """Pool tokens (N, F) or a feature map (F, H, W) to (F,).

    Raises
    ------
    EncoderSourceError : all tokens are prefix tokens.
    """
    if graph.pooling is Pooling.default:
        return found
    tokens = found.reshape(len(found), -1).T if graph.rank == 4 else found
    if graph.pooling is Pooling.class_token:
        first: NDArray[np.float32] = tokens[0]
        return first
    patches = tokens if graph.rank == 4 else tokens[graph.n_prefix :]
    if not len(patches):
        raise EncoderSourceError(
            f"The graph gives {len(tokens)} tokens, and with --prefix-tokens {graph.n_prefix} none "
            "of them is pooled. Give a smaller number."
        )
    if graph.pooling is Pooling.mean:
        mean: NDArray[np.float32] = patches.mean(0)
        return mean
    powers = np.maximum(patches, GEM_FLOOR) ** GEM_EXPONENT
    generalised: NDArray[np.float32] = powers.mean(0) ** (1 / GEM_EXPONENT)
    return generalised


def wrapped(graph: ForeignGraph, input_format: InputFormat, dim: int) -> onnx.ModelProto:
    """Return the graph with Vouch's input and outputs; the variance is zero.

    Parameters
    ----------
    dim : F, the size of the vector.

    Raises
    ------
    EncoderSourceError : the graph is too large for one file, or has no class token.
    """
    model = compose.add_prefix(graph.model, _PREFIX)
    preprocessing = input_format.preprocessing
    shape: list[str | int | None] = ["batch", preprocessing.height, preprocessing.width, 3]
    body = model.graph
    made = helper.make_graph(
        [*_front(graph), *body.node, *_back(graph, _opset(model))],
        "encoder",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", dim])
            for name in OUTPUT_NAMES
        ],
        [*body.initializer, *_constants(graph, input_format)],
        sparse_initializer=list(body.sparse_initializer),
    )
    whole = helper.make_model(
        made,
        opset_imports=list(model.opset_import),
        functions=list(model.functions),
        ir_version=model.ir_version,
    )
    metadata = EncoderMetadata(preprocessing, "deterministic")
    helper.set_model_props(whole, {METADATA_KEY: metadata.to_json()})
    if whole.ByteSize() > _MOST_BYTES:
        raise EncoderSourceError(
            f"The graph has {whole.ByteSize():,} bytes; at most {_MOST_BYTES:,} fit into one file. "
            "Export it in half precision."
        )
    return whole


def require_size(graph: ForeignGraph, input_format: InputFormat) -> None:
    """Refuse preprocessing whose image size differs from the graph's input size.

    Raises
    ------
    EncoderSourceError
    """
    shape = _shape(graph.images)
    wanted = shape[1:3] if graph.channels_last else shape[2:4]
    given = input_format.preprocessing.height, input_format.preprocessing.width
    fixed = [(a, b) for a, b in zip(wanted, given, strict=True) if isinstance(a, int) and a != b]
    if fixed:
        raise EncoderSourceError(
            f"The graph takes images of {wanted[0]} × {wanted[1]} pixels, but the preprocessing "
            f"gives {given[0]} × {given[1]}. Give the preprocessing file of this graph."
        )


def _front(graph: ForeignGraph) -> list[onnx.NodeProto]:
    """Return the nodes that convert uint8 images (B, H, W, 3) to the graph's input."""
    target = _PREFIX + graph.images.name
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["vouch/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["vouch/float", "vouch/scale"], ["vouch/scaled"]),
        helper.make_node("Sub", ["vouch/scaled", "vouch/shift"], ["vouch/standardised"]),
    ]
    last = "vouch/standardised"
    if not graph.channels_last:
        nodes.append(helper.make_node("Transpose", [last], ["vouch/planes"], perm=[0, 3, 1, 2]))
        last = "vouch/planes"
    nodes.append(helper.make_node("Cast", [last], [target], to=_element(graph.images)))
    return nodes


def _back(graph: ForeignGraph, opset: int) -> list[onnx.NodeProto]:
    """Return the nodes that convert the graph's output to Vouch's three outputs."""
    mean, variance, features = OUTPUT_NAMES
    nodes = [
        helper.make_node(
            "Cast", [_PREFIX + graph.found.name], ["vouch/found"], to=TensorProto.FLOAT
        )
    ]
    last = "vouch/found"
    if graph.pooling is not Pooling.default:
        nodes += _pooling_nodes(graph, last, opset)
        last = "vouch/pooled"
    return [
        *nodes,
        helper.make_node("Identity", [last], [mean]),
        helper.make_node("Identity", [last], [features]),
        helper.make_node("Shape", [last], ["vouch/shape"]),
        helper.make_node("ConstantOfShape", ["vouch/shape"], [variance]),
    ]


def _pooling_nodes(graph: ForeignGraph, found: str, opset: int) -> list[onnx.NodeProto]:
    """Return the nodes that pool tokens or a feature map to ``vouch/pooled``."""
    if graph.pooling is Pooling.class_token:
        if graph.rank == 4:
            raise EncoderSourceError(
                f"The output {graph.found.name!r} is a feature map, which has no class token."
            )
        return [helper.make_node("Gather", [found, "vouch/first"], ["vouch/pooled"], axis=1)]
    nodes, last, axes = [], found, [2, 3]
    if graph.rank == 3:
        axes = [1]
        slicing = [last, "vouch/start", "vouch/end", "vouch/axis"]
        nodes.append(helper.make_node("Slice", slicing, ["vouch/patches"]))
        last = "vouch/patches"
    gem = graph.pooling is Pooling.gem
    if gem:
        nodes += [
            helper.make_node("Max", [last, "vouch/floor"], ["vouch/positive"]),
            helper.make_node("Pow", ["vouch/positive", "vouch/exponent"], ["vouch/powers"]),
        ]
        last = "vouch/powers"
    mean = "vouch/mean" if gem else "vouch/pooled"
    if opset >= _AXES_ARE_INPUT:
        over = numpy_helper.from_array(np.array(axes, np.int64))
        nodes += [
            helper.make_node("Constant", [], ["vouch/axes"], value=over),
            helper.make_node("ReduceMean", [last, "vouch/axes"], [mean], keepdims=0),
        ]
    else:
        nodes.append(helper.make_node("ReduceMean", [last], [mean], axes=axes, keepdims=0))
    if gem:
        nodes.append(helper.make_node("Pow", [mean, "vouch/root"], ["vouch/pooled"]))
    return nodes


def _constants(graph: ForeignGraph, input_format: InputFormat) -> list[TensorProto]:
    """Return the constants of the added nodes."""
    std = np.array(input_format.std)
    values: dict[str, NDArray[Any]] = {
        "vouch/scale": (1 / (255 * std)).astype(np.float32),
        "vouch/shift": (np.array(input_format.mean) / std).astype(np.float32),
    }
    if graph.pooling is not Pooling.default:
        values |= {
            "vouch/first": np.array(0, np.int64),
            "vouch/start": np.array([graph.n_prefix], np.int64),
            "vouch/end": np.array([2**31 - 1], np.int64),
            "vouch/axis": np.array([1], np.int64),
            "vouch/floor": np.array(GEM_FLOOR, np.float32),
            "vouch/exponent": np.array(GEM_EXPONENT, np.float32),
            "vouch/root": np.array(1 / GEM_EXPONENT, np.float32),
        }
    return [numpy_helper.from_array(value, name) for name, value in values.items()]


def _opset(model: onnx.ModelProto) -> int:
    return max(int(one.version) for one in model.opset_import if one.domain in {"", "ai.onnx"})


def _element(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Return the shape of a tensor: numbers, or names of dynamic dimensions."""
    dims = value.type.tensor_type.shape.dim
    return tuple(
        int(one.dim_value) if one.HasField("dim_value") else one.dim_param or "?" for one in dims
    )


def _described(values: Sequence[onnx.ValueInfoProto]) -> str:
    """Return the names of tensors, with their types and shapes."""
    found = []
    for one in values:
        kind = TensorProto.DataType.Name(_element(one)).lower()
        found.append(f"{one.name} {kind} ({', '.join(map(str, _shape(one)))})")
    return "; ".join(found) or "none"
