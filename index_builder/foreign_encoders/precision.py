"""Reduces an exported encoder to float16 or int8, and measures the loss of recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

# `model_store.encoder.onnx` must be imported first; it disables ONNX Runtime's telemetry.
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from index_builder.foreign_encoders.choices import Precision
from model_store.encoder.contract import INPUT_NAME, METADATA_KEY, Embeddings
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import ParityError

_BATCH = 4


@dataclass(frozen=True, slots=True)
class PrecisionCost:
    """How a lower precision changes the embeddings of images.

    Attributes
    ----------
    n_images : number of images.
    smallest_cosine : minimum cosine between an image's embeddings in both precisions.
    mean_cosine : mean of this cosine over all images.
    recall_at_1 : recall in the lower precision: share of images whose nearest other image has the
        same label. Without labels: share of images whose nearest other image is the same as in
        float32.
    recall_at_1_float32 : recall in float32; 1 without labels.
    bytes : size of the file in bytes, in the lower precision.
    bytes_float32 : size of the file in bytes, in float32.
    """

    n_images: int
    smallest_cosine: float
    mean_cosine: float
    recall_at_1: float
    recall_at_1_float32: float
    bytes: int
    bytes_float32: int


class _Batches(CalibrationDataReader):  # type: ignore[misc] # ONNX Runtime has no types
    """Batches of images that determine the ranges of a static quantisation."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        starts = range(0, len(images), _BATCH)
        self._batches: Iterator[NDArray[np.uint8]] = (images[i : i + _BATCH] for i in starts)

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        """Return the next batch; None after the last."""
        batch = next(self._batches, None)
        return None if batch is None else {INPUT_NAME: batch}


def reduce_precision(
    path: Path, reduced: Path, precision: Precision, images: NDArray[np.uint8]
) -> None:
    """Write the encoder in ``path`` to ``reduced``, with a lower precision.

    Parameters
    ----------
    images : (n, H, W, 3) images that determine the ranges of ``int8_static``.
    """
    # On x86 processors without VNNI, sums of 8-bit weights may overflow (`int8_sums_overflow`).
    # Weights of seven bits would not overflow, but MobileNetV2 would lose a tenth of its recall.
    with TemporaryDirectory() as scratch:
        prepared = Path(scratch) / "prepared.onnx"
        if precision is Precision.float16:
            model = convert_float_to_float16(onnx.load(path), keep_io_types=True)
            onnx.save(model, reduced)
        else:
            quant_pre_process(path, prepared, skip_symbolic_shape=True)
            _give_each_node_its_own_weights(prepared)
            _quantise(prepared, reduced, precision, images)
    model = onnx.load(reduced)
    props = {one.key: one.value for one in onnx.load(path).metadata_props}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {METADATA_KEY: props[METADATA_KEY]})
    reduced.write_bytes(model.SerializeToString(deterministic=True))


def _give_each_node_its_own_weights(path: Path) -> None:
    """Copy weights that several nodes share: ONNX Runtime would convert them once for each node.

    On processors without VNNI, it then refuses the encoder, since the second conversion has the
    name of the first.
    """
    model = onnx.load(path)
    weights = {one.name: one for one in model.graph.initializer}
    n_uses: Counter[str] = Counter()
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name not in weights:
                continue
            if n_uses[name]:
                own = onnx.TensorProto()
                own.CopyFrom(weights[name])
                node.input[place] = own.name = f"{name}.{n_uses[name]}"
                model.graph.initializer.append(own)
            n_uses[name] += 1
    onnx.save(model, path)


def _quantise(path: Path, reduced: Path, precision: Precision, images: NDArray[np.uint8]) -> None:
    if precision is Precision.int8_dynamic:
        # Convolutions stay float32. One range for the input of a convolution is too coarse:
        # MobileNetV2 keeps only a third of its recall. The int8 kernel is also slower than float32.
        operators = ["MatMul", "Gemm"]
        quantize_dynamic(path, reduced, operators, per_channel=True, weight_type=QuantType.QInt8)
        return
    options: dict[str, Any] = {
        "quant_format": QuantFormat.QDQ,
        "per_channel": True,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QInt8,
        "calibrate_method": CalibrationMethod.MinMax,
    }
    quantize_static(path, reduced, _Batches(images), **options)


def precision_cost(
    path: Path, reduced: Path, images: NDArray[np.uint8], labels: list[str] | None
) -> PrecisionCost:
    """Compare an encoder with its copy in lower precision.

    Parameters
    ----------
    images : (n, H, W, 3).
    labels : n labels; None without labels.

    Raises
    ------
    ParityError : values of the network exceed the range of the number format.
    """
    exact, small = _encoded(path, images), _encoded(reduced, images)
    lost = ~(np.isfinite(small.mean).all(1) & small.mean.any(1))
    if lost.any():
        raise ParityError(
            f"{int(lost.sum())} of {len(images)} images no longer have an embedding: values of the "
            "network are too large or too small for this number format (float16 ends at 65,504). "
            "Choose another --precision. Nothing was written."
        )
    a, b = exact.directions.astype(np.float64), small.directions.astype(np.float64)
    cosines = (a * b).sum(1)
    nearest, nearest_exact = _nearest(b), _nearest(a)
    if labels is None:
        recall, recall_exact = float((nearest == nearest_exact).mean()), 1.0
    else:
        names = np.array(labels)
        recall = float((names[nearest] == names).mean())
        recall_exact = float((names[nearest_exact] == names).mean())
    return PrecisionCost(
        len(images),
        float(cosines.min()),
        float(cosines.mean()),
        recall,
        recall_exact,
        reduced.stat().st_size,
        path.stat().st_size,
    )


def require_recall(cost: PrecisionCost, tolerance: float) -> None:
    """Refuse an encoder that has lost too much recall.

    Parameters
    ----------
    tolerance : maximum loss of recall at 1.

    Raises
    ------
    ParityError
    """
    fall = cost.recall_at_1_float32 - cost.recall_at_1
    if not fall <= tolerance:
        raise ParityError(
            f"Recall at 1 on {cost.n_images} images falls from {cost.recall_at_1_float32:.4f} to "
            f"{cost.recall_at_1:.4f}; a loss of at most {tolerance:.4f} is accepted "
            "(`--recall-tolerance`). Nothing was written."
        )


def _encoded(path: Path, images: NDArray[np.uint8]) -> Embeddings:
    return OnnxEncoder(path, "cpu").encode(images, at_once=_BATCH)


def _nearest(directions: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each row, return the index of the nearest other row."""
    similarities = directions @ directions.T
    np.fill_diagonal(similarities, -np.inf)
    nearest: NDArray[np.int64] = similarities.argmax(1)
    return nearest
