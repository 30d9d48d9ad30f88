"""An encoder's file on ONNX Runtime's providers: throughput, latency, and parity with the CPU.

- *roofline*: the session alone, its images and answers in the device's memory and left there;
- *encoder*: `OnnxEncoder.encode`, with the images copied there and the answers back;
- *graphs*: the same with graphs of CUDA;
- *decoded*: the same fed by threads that decode photographs meanwhile.

Over the roofline each is what copying, or waiting for decoded images, costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from model_store.encoder.contract import OUTPUT_NAMES, Embeddings, Inputs
from model_store.encoder.onnx import OnnxEncoder, open_graph
from model_store.images import decode_image
from model_store.machine import Provider
from tests.benchmarks.gpu.rows import Row, row, timed

N_COMPARED = 64
ON_GPU: Sequence[Provider] = ("cuda", "tensorrt")


def encoder_rows(
    path: Path,
    precision: str,
    provider: Provider,
    batches: Sequence[int],
    photographs: Sequence[bytes],
    seconds: float,
) -> Iterator[Row]:
    """Yield the rows of a file on a provider."""
    of: Row = {"kind": "encoder", "provider": provider, "precision": precision}
    # Kept for all batches: TensorRT takes minutes to start.
    opened = cache(partial(_opened, path, provider))
    limit_of = cache(lambda: open_graph(path.read_bytes(), provider))
    yield row({**of, "way": "parity"}, partial(_parity, opened, path, photographs))
    for batch in batches:
        alone = partial(_alone, opened, limit_of, provider, batch, seconds)
        limit = row({**of, "way": "roofline", "batch": batch}, alone)
        yield limit
        if "images_per_s" not in limit:
            continue
        for way in ("encoder", *(["graphs"] if provider in ON_GPU else []), "decoded"):
            measured = partial(_measured, opened, way, batch, photographs, seconds)
            found = row({**of, "way": way, "batch": batch}, measured)
            if "images_per_s" in found:
                found["over_roofline"] = found["images_per_s"] / limit["images_per_s"]
            yield found


def _opened(path: Path, provider: Provider, way: str) -> OnnxEncoder:
    return OnnxEncoder(path, provider, cuda_graphs=way == "graphs")


def _images(encoder: OnnxEncoder, photographs: Sequence[bytes], n: int) -> Inputs:
    data = cycle(photographs)
    return np.stack([_prepared(encoder, next(data)) for _ in range(n)])


def _prepared(encoder: OnnxEncoder, data: bytes) -> Inputs:
    preprocessing = encoder.metadata.preprocessing
    return preprocessing(decode_image(data, None, preprocessing.smallest_side).pixels)


def _alone(
    opened: Callable[[str], OnnxEncoder],
    limit_of: Callable[[], onnxruntime.InferenceSession],
    provider: Provider,
    batch: int,
    seconds: float,
) -> Row:
    """The session with everything in the device's memory."""
    encoder, session = opened("encoder"), limit_of()
    device = "cuda" if provider in ON_GPU else "cpu"
    blank = np.zeros((batch, *encoder.metadata.input.shape), encoder.metadata.input.dtype)
    given = onnxruntime.OrtValue.ortvalue_from_numpy(blank, device, 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input(encoder.metadata.input_name, given)
    for name in OUTPUT_NAMES:
        binding.bind_output(name, device)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return timed(run, batch, seconds)


def _measured(
    opened: Callable[[str], OnnxEncoder],
    way: str,
    batch: int,
    photographs: Sequence[bytes],
    seconds: float,
) -> Row:
    encoder = opened("graphs") if way == "graphs" else opened("encoder")
    if way != "decoded":
        images = _images(encoder, photographs, batch)
        return timed(lambda: encoder.encode(images), batch, seconds)
    with ThreadPoolExecutor(_cores()) as threads:
        ready = _decoded(encoder, threads, photographs, batch)
        return {**timed(lambda: encoder.encode(next(ready)), batch, seconds), "decoders": _cores()}


def _decoded(
    encoder: OnnxEncoder, threads: ThreadPoolExecutor, photographs: Sequence[bytes], batch: int
) -> Iterator[Inputs]:
    """Batches of photographs, the next two of which are decoded while one is encoded."""
    data = cycle(photographs)
    waiting: list[list[Future[Inputs]]] = []
    while True:
        while len(waiting) < 3:
            waiting.append([threads.submit(_prepared, encoder, next(data)) for _ in range(batch)])
        yield np.stack([future.result() for future in waiting.pop(0)])


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _parity(opened: Callable[[str], OnnxEncoder], path: Path, photographs: Sequence[bytes]) -> Row:
    """How far answers are from the CPU's by the same file."""
    encoder = opened("encoder")
    images = _images(encoder, photographs, N_COMPARED)
    ours, theirs = encoder.encode(images), OnnxEncoder(path, "cpu").encode(images)
    return {"runs_on": encoder.provider, **compared(ours, theirs)}


def compared(ours: Embeddings, theirs: Embeddings) -> dict[str, float]:
    """The least cosine of directions, and the largest relative differences."""
    cosines = (ours.directions.astype(np.float64) * theirs.directions).sum(axis=1)
    return {
        "least_cosine": float(cosines.min()),
        **{
            f"{name}_off": float(np.abs(one - other).max() / np.abs(other).max())
            for name, one, other in (
                ("mean", ours.mean, theirs.mean),
                ("variance", ours.variance, theirs.variance),
                ("features", ours.features, theirs.features),
            )
            if other.any()
        },
    }


def machine() -> dict[str, Any]:
    """What the rows were measured on."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "providers": onnxruntime.get_available_providers(),
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
        "cores": _cores(),
    }
