"""Runs whose input and outputs stay in one place of a device's memory, for each size of a batch.

A run with arrays has ONNX Runtime find memory on the device, copy the images there and the answers
back, each time anew. Bound to memory that stays, it copies and computes. That is also what a graph
of CUDA asks for, which starts all kernels of a run at once: they read and write where they did when
they were recorded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# ONNX Runtime reports its use to its maker unless this is disabled before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

MOST_SIZES = 4
"""Sizes of batches with preallocated memory: services and indexing fill batches up to one."""

GRAPH_OF_A_RUN = "gpu_graph_id"
"""The setting of a run that says which graph of CUDA it is recorded as, and repeated by."""

NO_GRAPH = "-1"


def without_graph() -> onnxruntime.RunOptions:
    """Return options of a run that is not recorded, whatever the session is set to."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_OF_A_RUN, NO_GRAPH)
    return options


class BoundRuns:
    """A session of one input, run in memory that stays; safe to share by threads.

    Parameters
    ----------
    device : where, in ONNX Runtime's words: ``cuda``, ``cpu``.
    outputs : by name, the numbers that each has of an item; float32.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, device: str, outputs: Mapping[str, int]
    ) -> None:
        self._session, self._device, self._outputs = session, device, outputs
        self._batches: dict[int, _Batch] = {}
        self._lock = threading.Lock()

    def run(self, name: str, images: NDArray[Any]) -> Sequence[NDArray[np.float32]]:
        """Return the outputs of a batch (B, …), which is given to the input ``name``."""
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
    """The memory for batches of one size."""

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
        # A copy: the next run writes to the same memory.
        return [np.array(value.numpy()) for value in self._values.values()]
