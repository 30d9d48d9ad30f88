"""Runs with preallocated input and output memory on the device, for each batch size.

If ONNX Runtime gets arrays, it allocates device memory at each run, copies the arrays and then
computes. A run with preallocated memory skips the allocation. CUDA graphs require preallocated
memory: a graph starts all kernels of a run with one call, and its kernels use recorded addresses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Disable the telemetry of ONNX Runtime before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

MOST_SIZES = 4
"""Maximum number of batch sizes with preallocated memory. The service and the index builder fill
each incomplete batch up to one of these sizes."""

GRAPH_OF_A_RUN = "gpu_graph_id"
"""Name of the run setting that contains the id of a CUDA graph. ONNX Runtime records a graph with
this id in one run, and repeats this graph in later runs."""

NO_GRAPH = "-1"


def without_graph() -> onnxruntime.RunOptions:
    """Return options for a run without a CUDA graph; the options are valid for every session."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_OF_A_RUN, NO_GRAPH)
    return options


class BoundRuns:
    """A session that has one input and uses preallocated memory. Threads can share the session.

    Parameters
    ----------
    device : name of the device in ONNX Runtime: ``cuda`` or ``cpu``.
    outputs : for each output name, the number of float32 values per image.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, device: str, outputs: Mapping[str, int]
    ) -> None:
        self._session, self._device, self._outputs = session, device, outputs
        self._batches: dict[int, _Batch] = {}
        self._lock = threading.Lock()

    def run(self, name: str, images: NDArray[Any]) -> Sequence[NDArray[np.float32]]:
        """Return the outputs for a batch (B, …) of the input ``name``."""
        with self._lock:
            batch = self._batches.get(len(images))
            if batch is None and len(self._batches) < MOST_SIZES:
                batch = _Batch(self._session, self._device, name, images, self._outputs)
                self._batches[len(images)] = batch
            if batch is not None:
                return batch.run(images)
        found: Sequence[NDArray[np.float32]] = self._session.run(
            list(self._outputs), {name: images}, without_graph()
        )
        return found


class _Batch:
    """The memory for one batch size."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: str,
        name: str,
        images: NDArray[Any],
        outputs: Mapping[str, int],
    ) -> None:
        made = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self._session, self._binding = session, session.io_binding()
        self._input = made(images.shape, images.dtype.type, device, 0)
        self._binding.bind_ortvalue_input(name, self._input)
        self._values = {
            output: made((len(images), size), np.float32, device, 0)
            for output, size in outputs.items()
        }
        for output, value in self._values.items():
            self._binding.bind_ortvalue_output(output, value)
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry(GRAPH_OF_A_RUN, str(len(images)))

    def run(self, images: NDArray[Any]) -> list[NDArray[np.float32]]:
        self._input.update_inplace(np.ascontiguousarray(images))
        self._session.run_with_iobinding(self._binding, self._options)
        # The results are copied, because the next run writes to the same memory.
        return [np.array(value.numpy()) for value in self._values.values()]
