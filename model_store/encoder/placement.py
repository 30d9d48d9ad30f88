"""The execution provider that ran each node of an encoder's graph, from a profile.

ONNX Runtime has an ordered list of execution providers. Each node of the graph runs on the first
provider that supports the node. So a session with CUDA as the first provider may compute most nodes
on the CPU, without a message. A profile of one run shows the provider of each node.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from model_store.encoder.bound import without_graph

# Disable the telemetry of ONNX Runtime before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

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
