"""Runs of a session: with preallocated memory on the device, and with a profile.

If ONNX Runtime gets arrays, it allocates device memory at each run, copies the arrays and then
computes. A run with preallocated memory skips the allocation. CUDA graphs require preallocated
memory: a graph starts all kernels of a run with one call, and its kernels use recorded addresses.

ONNX Runtime has an ordered list of execution providers. Each node of the graph runs on the first
provider that supports the node. So a session with CUDA as the first provider may compute most nodes
on the CPU, without a message. A profile of one run shows the provider of each node.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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


# Disable the telemetry of ONNX Runtime before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

RUN_SUFFIX = "_kernel_time"
"""Suffix of the name of an event that records the run of a node. Older releases of ONNX Runtime
also write events for fences."""

COPIES = {"MemcpyFromHost", "MemcpyToHost"}
"""The copy operators that ONNX Runtime adds between providers. These operators do not count as
nodes."""


@dataclass(frozen=True, slots=True)
class ProviderPart:
    """The part of the graph that one execution provider ran.

    Attributes
    ----------
    nodes : number of nodes that the provider ran.
    share : share of all nodes that ran.
    seconds : time of the nodes' kernels on the host. GPU kernels run asynchronously, so ``seconds``
        is not the computing time of the GPU.
    """

    nodes: int
    share: float
    seconds: float


Placement = Mapping[str, ProviderPart]
"""The part of the graph that each execution provider ran; the provider with the most nodes is
first."""


def profile_first_run(options: onnxruntime.SessionOptions, directory: Path) -> None:
    """Enable the profile of a session; it is written to a file in ``directory``."""
    options.enable_profiling = True
    options.profile_file_prefix = str(directory / "encoder")


def run_profiled(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, NDArray[Any]]
) -> Placement:
    """Run a session once, end its profiling, and return the provider of each node.

    Raises
    ------
    ValueError : the session has no profile, or the profile contains no nodes.
    """
    session.run(None, dict(inputs), without_graph())
    written = session.end_profiling()
    if not written:
        raise ValueError("the session was started without a profile")
    return placement_of(json.loads(Path(written).read_text(encoding="utf-8")))


def placement_of(events: Iterable[Mapping[str, Any]]) -> Placement:
    """Return the part that each provider ran, from the events of a profile.

    Raises
    ------
    ValueError : no event contains a node with its provider.
    """
    nodes: Counter[str] = Counter()
    microseconds: Counter[str] = Counter()
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") != "Node" or not event["name"].endswith(RUN_SUFFIX):
            continue
        if "provider" in arguments and arguments.get("op_name") not in COPIES:
            nodes[arguments["provider"]] += 1
            microseconds[arguments["provider"]] += event["dur"]
    if not nodes:
        raise ValueError("the profile contains no node with its provider")
    return {
        provider: ProviderPart(n, n / nodes.total(), microseconds[provider] * 1e-6)
        for provider, n in nodes.most_common()
    }
