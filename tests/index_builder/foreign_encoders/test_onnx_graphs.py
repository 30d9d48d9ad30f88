"""Foreign ONNX graphs, made node by node, without torch."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from index_builder.foreign_encoders.bundle import WrittenEncoder, write_encoder
from index_builder.foreign_encoders.choices import Pooling
from index_builder.foreign_encoders.doors import EncoderChoices, onnx_source
from index_builder.foreign_encoders.parity import ParityImage, prepared
from model_store.encoder.onnx import OnnxEncoder, reason_of
from model_store.errors import (
    ConfigError,
    EncoderContractError,
    EncoderSourceError,
    OutputError,
    ParityError,
)

SIDE, N_FEATURES = 8, 5
RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(3 * SIDE * SIDE, N_FEATURES))
PATCHES = RNG.normal(size=(N_FEATURES, 3, 4, 4))

OPEN_CLIP = '{"size": 8, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "resize_mode": "squash"}'


def value(name: str, shape: list[int | str | None], kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    shape: list[int | str | None],
    outputs: dict[str, list[int | str | None]],
    *,
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
    constants: dict[str, NDArray[np.float64]] | None = None,
) -> Path:
    numbers = helper.tensor_dtype_to_np_dtype(kind)
    made = helper.make_graph(
        nodes,
        "graph",
        [value("pixels", shape, kind)],
        [value(name, sides, kind) for name, sides in outputs.items()],
        [
            numpy_helper.from_array(
                np.asarray(array) if array.dtype == np.int64 else array.astype(numbers), name
            )
            for name, array in (constants or {}).items()
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def linear(path: Path, *, channels_last: bool = False, kind: int = TensorProto.FLOAT) -> Path:
    """A graph whose vector is linear in the pixels."""
    shape: list[int | str | None] = ["n", 3, SIDE, SIDE]
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
    ]
    weights = WEIGHTS
    if channels_last:
        shape = ["n", SIDE, SIDE, 3]
        weights = WEIGHTS.reshape(3, SIDE, SIDE, -1).transpose(1, 2, 0, 3).reshape(-1, N_FEATURES)
    return save(
        path, nodes, shape, {"vector": ["n", None]}, kind=kind, constants={"weights": weights}
    )


def feature_map(path: Path, *, opset: int = 17, tokens: bool = False) -> Path:
    """A graph with a feature map of 2 × 2 patches, or with these as tokens."""
    nodes = [helper.make_node("Conv", ["pixels", "patches"], ["map"], strides=[4, 4])]
    outputs: dict[str, list[int | str | None]] = {"map": ["n", N_FEATURES, 2, 2]}
    constants: dict[str, NDArray[np.float64]] = {"patches": PATCHES}
    if tokens:
        nodes += [
            helper.make_node("Reshape", ["map", "shape"], ["flat"]),
            helper.make_node("Transpose", ["flat"], ["tokens"], perm=[0, 2, 1]),
        ]
        constants["shape"] = np.array([0, N_FEATURES, 4], np.int64)
        outputs = {"tokens": ["n", 4, N_FEATURES]}
    return save(path, nodes, ["n", 3, SIDE, SIDE], outputs, opset=opset, constants=constants)


def expected(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The linear graph's vectors by hand."""
    scaled = (images / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    found: NDArray[np.float64] = scaled.transpose(0, 3, 1, 2).reshape(len(images), -1) @ WEIGHTS
    return found


def noise(width: int, height: int) -> ParityImage:
    """An image that no two pipelines make the same of by chance."""
    pixels = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return ParityImage(f"{width} × {height}", file.getvalue())


def brought(graph: Path, **choices: object) -> tuple[WrittenEncoder, NDArray[np.uint8]]:
    """Write an encoder of a graph; also some small images as it takes them."""
    preprocess = graph.with_name("how.json")
    preprocess.write_text(OPEN_CLIP)
    given = EncoderChoices(preprocess=preprocess, **choices)  # type: ignore[arg-type]
    images = [noise(width, height) for width, height in ((8, 8), (20, 11), (9, 31))]
    source = onnx_source(str(graph), given)
    written = write_encoder(graph.parent / "encoder", source, images)
    return written, prepared(images, source.input_format.preprocessing)


@pytest.mark.parametrize(
    ("channels_last", "kind", "tolerance"),
    [
        (False, TensorProto.FLOAT, 1e-5),
        (True, TensorProto.FLOAT, 1e-5),
        (False, TensorProto.FLOAT16, 1e-2),
    ],
)
def test_a_vector(channels_last: bool, kind: int, tolerance: float, tmp_path: Path) -> None:
    graph = linear(tmp_path / "a.onnx", channels_last=channels_last, kind=kind)
    written, images = brought(graph)
    found = OnnxEncoder(written.directory / "encoder.onnx", "cpu").encode(images)
    scale = np.abs(expected(images)).max()
    np.testing.assert_allclose(found.mean / scale, expected(images) / scale, atol=tolerance)
    np.testing.assert_array_equal(found.features, found.mean)
    np.testing.assert_array_equal(found.variance, np.zeros_like(found.mean))


def test_prefix_of_all_tokens_is_refused(tmp_path: Path) -> None:
    graph = feature_map(tmp_path / "a.onnx", tokens=True)
    with pytest.raises(EncoderSourceError, match="gives 4 tokens, and with --prefix-tokens 4 none"):
        brought(graph, pooling=Pooling.mean, n_prefix=4)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("pooling", ["mean", "gem", "class_token"])
@pytest.mark.parametrize(("tokens", "n_prefix"), [(False, 0), (True, 0), (True, 1)])
def test_pooling(opset: int, tokens: bool, pooling: str, n_prefix: int, tmp_path: Path) -> None:
    graph = feature_map(tmp_path / "a.onnx", opset=opset, tokens=tokens)
    if pooling == "class_token" and not tokens:
        with pytest.raises(EncoderSourceError, match="'map' is a feature map, which has no class"):
            brought(graph, pooling=Pooling(pooling), n_prefix=n_prefix)
        return
    written, images = brought(graph, pooling=Pooling(pooling), n_prefix=n_prefix)
    found = OnnxEncoder(written.directory / "encoder.onnx", "cpu").encode(images).mean
    scaled = (images / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    blocks = scaled.reshape(len(images), 2, 4, 2, 4, 3).transpose(0, 1, 3, 5, 2, 4)
    values = blocks.reshape(len(images), 4, -1) @ PATCHES.reshape(N_FEATURES, -1).T
    patches = values[:, n_prefix:] if tokens else values
    wanted = {
        "class_token": values[:, 0],
        "mean": patches.mean(1),
        "gem": np.cbrt((patches.clip(1e-6) ** 3).mean(1)),
    }[pooling]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


class TestWhatCannotBeWrapped:
    def test_an_input_that_is_no_image(self, tmp_path: Path) -> None:
        nodes = [helper.make_node("Identity", ["pixels"], ["vector"])]
        save(tmp_path / "a.onnx", nodes, ["n", 7], {"vector": ["n", 7]})
        with pytest.raises(
            EncoderSourceError, match=r"the inputs pixels float \(n, 7\) and .* Wan"
        ):
            brought(tmp_path / "a.onnx")

    def test_several_vectors_of_which_one_is_chosen(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Flatten", ["pixels"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
            helper.make_node("Neg", ["vector"], ["other"]),
        ]
        outputs: dict[str, list[int | str | None]] = {"vector": ["n", 5], "other": ["n", 5]}
        shape: list[int | str | None] = ["n", 3, SIDE, SIDE]
        graph = save(tmp_path / "a.onnx", nodes, shape, outputs, constants={"weights": WEIGHTS})
        with pytest.raises(EncoderSourceError, match=r"there are 2. `--output NAME` selects one"):
            brought(graph)
        with pytest.raises(EncoderSourceError, match=r"one output called 'map' .* there are 0"):
            brought(graph, output="map")
        written, images = brought(graph, output="other")
        found = OnnxEncoder(written.directory / "encoder.onnx", "cpu").encode(images).mean
        np.testing.assert_allclose(found, -expected(images), rtol=1e-4, atol=1e-4)

    def test_a_map_that_nobody_pools(self, tmp_path: Path) -> None:
        with pytest.raises(
            EncoderSourceError, match=r"map float \(n, 5, 2, 2\).*`--pooling` pools"
        ):
            brought(feature_map(tmp_path / "a.onnx"))

    def test_another_size(self, tmp_path: Path) -> None:
        graph = linear(tmp_path / "a.onnx")
        (tmp_path / "big.json").write_text('{"size": 16}')
        choices = EncoderChoices(preprocess=tmp_path / "big.json")
        with pytest.raises(
            EncoderSourceError, match=r"takes images of 8 × 8 pixels.* gives 16 × 16"
        ):
            onnx_source(str(graph), choices)

    def test_batches_of_one_size(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Reshape", ["pixels", "shape"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
        ]
        constants = {"weights": WEIGHTS, "shape": np.array([1, 3 * SIDE * SIDE], np.int64)}
        graph = save(
            tmp_path / "a.onnx",
            nodes,
            [1, 3, SIDE, SIDE],
            {"vector": [1, N_FEATURES]},
            constants=constants,  # type: ignore[arg-type]
        )
        with pytest.raises(
            EncoderSourceError, match="Export the graph with a dynamic batch dimension"
        ):
            brought(graph)
        assert not (tmp_path / "encoder").exists()

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "is empty"),
            (b"no graph", "but plain text. Name the exported graph"),
            (b"\x08\x07", "has the inputs none"),
            (b"\x80\x04\x95" + bytes(50), "a pickle"),
            (b"\x1c\0\0\0TFL3" + bytes(60), "TensorFlow Lite"),
            (b"\x18\0\0\0ORTM" + bytes(60), "the ORT format"),
            (b'\x40\0\0\0\0\0\0\0{"a":{}}', "safetensors"),
            (b'{"error": "not found"}', "but JSON"),
            (b"\xff" * 60, "not a complete ONNX graph"),
        ],
    )
    def test_file_that_is_no_graph_is_named(
        self, content: bytes, said: str, tmp_path: Path
    ) -> None:
        (tmp_path / "a.onnx").write_bytes(content)
        with pytest.raises(EncoderSourceError, match=said):
            brought(tmp_path / "a.onnx")

    def test_old_opset_is_refused_before_nodes_are_added(self, tmp_path: Path) -> None:
        graph = linear(tmp_path / "a.onnx")
        model = onnx.load(graph)
        model.opset_import[0].version = 8
        onnx.save(model, graph)
        with pytest.raises(EncoderSourceError, match="has opset 8; at least 9 is needed"):
            brought(graph)

    def test_a_truncated_one(self, tmp_path: Path) -> None:
        graph = linear(tmp_path / "a.onnx")
        graph.write_bytes(graph.read_bytes()[:-400])
        with pytest.raises(EncoderSourceError):
            brought(graph)

    def test_an_operator_that_nobody_knows(self, tmp_path: Path) -> None:
        graph = linear(tmp_path / "a.onnx")
        model = onnx.load(graph)
        model.graph.node[0].domain = "somebody.else"
        model.opset_import.append(helper.make_opsetid("somebody.else", 1))
        onnx.save(model, graph)
        with pytest.raises(EncoderSourceError, match="ONNX Runtime cannot load the graph"):
            brought(graph)

    def test_nothing_says_how_images_are_prepared(self, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        graph = linear(tmp_path / "inner" / "a.onnx")
        with pytest.raises(ConfigError, match="Give `--preprocess FILE`"):
            onnx_source(str(graph), EncoderChoices())
        (tmp_path / "preprocess_cfg.json").write_text(OPEN_CLIP)  # as Immich lays it out
        onnx_source(str(graph), EncoderChoices())


def test_numbers_that_are_none_are_no_parity(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("Sqrt", ["flat"], ["roots"]),  # of negative numbers
        helper.make_node("MatMul", ["roots", "weights"], ["vector"]),
    ]
    shape: list[int | str | None] = ["n", 3, SIDE, SIDE]
    constants = {"weights": WEIGHTS}
    graph = save(tmp_path / "a.onnx", nodes, shape, {"vector": ["n", 5]}, constants=constants)
    with pytest.raises(EncoderSourceError, match="not finite"):
        brought(graph)
    assert not list(tmp_path.glob("*encoder*"))


def test_graph_that_is_not_finite_for_some_images_is_refused(tmp_path: Path) -> None:
    """The logarithm of what only a black image has none of."""
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
        helper.make_node("ReduceMax", ["flat"], ["most"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["most", "limit"], ["above"]),
        helper.make_node("Sqrt", ["above"], ["root"]),
        helper.make_node("Add", ["vector", "root"], ["found"]),
    ]
    shape: list[int | str | None] = ["n", 3, SIDE, SIDE]
    constants = {"weights": WEIGHTS, "limit": np.array([0.0])}
    graph = save(tmp_path / "a.onnx", nodes, shape, {"found": ["n", 5]}, constants=constants)
    black = BytesIO()
    Image.new("RGB", (40, 30)).save(black, "PNG")
    (tmp_path / "preprocess_cfg.json").write_text(OPEN_CLIP)
    source = onnx_source(str(graph), EncoderChoices())
    images = [noise(20, 20), noise(30, 20), noise(9, 9), ParityImage("black", black.getvalue())]
    with pytest.raises(ParityError, match=r"not finite.* for 1 of 4 images, for example 'black'"):
        write_encoder(tmp_path / "encoder", source, [*images, noise(7, 9)][:4])


@pytest.mark.parametrize(
    ("operator", "said"), [("Mul", "a vector of zeros"), ("Add", "of the same direction")]
)
def test_graph_whose_vectors_tell_nothing_is_refused(
    tmp_path: Path, operator: str, said: str
) -> None:
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
        helper.make_node("Mul", ["vector", "zero"], ["nothing"]),
        helper.make_node(operator, ["nothing", "other"], ["found"]),
    ]
    shape: list[int | str | None] = ["n", 3, SIDE, SIDE]
    constants = {"weights": WEIGHTS, "zero": np.zeros(1), "other": np.ones(1)}
    graph = save(tmp_path / "a.onnx", nodes, shape, {"found": ["n", 5]}, constants=constants)
    with pytest.raises(EncoderSourceError, match=said):
        brought(graph)


def test_graph_of_parallel_vectors_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
        helper.make_node("ReduceSum", ["vector"], ["sum"]),
        helper.make_node("Mul", ["sum", "other"], ["found"]),
    ]
    shape: list[int | str | None] = ["n", 3, SIDE, SIDE]
    constants = {"weights": WEIGHTS, "other": np.ones((1, 5))}
    graph = save(tmp_path / "a.onnx", nodes, shape, {"found": ["n", 5]}, constants=constants)
    with pytest.raises(EncoderSourceError, match="of the same direction"):
        brought(graph)


def test_reason_of_onnx_runtime_has_no_place_in_its_source() -> None:
    said = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
        "Reshape node. Name:'' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/"
        "tensor/reshape_helper.h:91 onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::"
        "TensorShape&, bool) input_shape_size == requested_shape_size was false. The input tensor "
        "cannot be reshaped"
    )
    reason = reason_of(RuntimeError(said))
    assert "::" not in reason
    assert "/onnxruntime" not in reason
    assert reason.endswith("Status Message: The input tensor cannot be reshaped")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"PK\3\4archive/data.pkl", "a ZIP archive"),
    ],
)
def test_file_in_place_of_a_graph_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(EncoderSourceError, match=said):
        brought(tmp_path / "a.onnx")
    with pytest.raises(EncoderContractError, match=said):
        OnnxEncoder(tmp_path / "a.onnx", "cpu")


@pytest.mark.parametrize(
    ("opset", "ir_version", "said"),
    [(99, 9, r"opset 99; .* opsets up to \d+\. Export it"), (17, 99, r"IR version 99; .* up to")],
)
def test_graph_of_the_future_is_refused_without_source_code(
    tmp_path: Path, opset: int, ir_version: int, said: str
) -> None:
    graph = linear(tmp_path / "a.onnx")
    model = onnx.load(graph)
    model.opset_import[0].version, model.ir_version = opset, ir_version
    onnx.save(model, graph)
    with pytest.raises(EncoderSourceError, match=said) as refused:
        brought(graph)
    assert "onnxruntime_src" not in str(refused.value)


def test_graph_of_a_fixed_batch_or_of_doubles_is_refused_with_advice(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["vector"]),
    ]
    graph = save(
        tmp_path / "a.onnx", nodes, [4, 3, SIDE, SIDE], {"vector": [4, 5]},
        constants={"weights": WEIGHTS},
    )  # fmt: skip
    with pytest.raises(EncoderSourceError, match=r"exactly 4 images.* dynamic batch"):
        brought(graph)
    graph = linear(tmp_path / "b.onnx", kind=TensorProto.DOUBLE)
    with pytest.raises(EncoderSourceError, match=r"double .* in float32 or float16"):
        brought(graph)


def test_an_encoder_takes_the_place_of_one_and_of_nothing_else(tmp_path: Path) -> None:
    graph = linear(tmp_path / "a.onnx")
    first, _ = brought(graph)
    content = (first.directory / "encoder.onnx").read_bytes()
    second, _ = brought(graph)
    assert (second.directory / "encoder.onnx").read_bytes() == content
    (second.directory / "encoder.json").unlink()
    with pytest.raises(OutputError, match="is not an encoder's directory"):
        brought(graph)


@pytest.mark.process
def test_no_torch_is_needed() -> None:
    modules = "index_builder.foreign_encoders.onnx_graphs, index_builder.commands.encoder"
    script = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
