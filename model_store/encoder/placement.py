"""The execution providers that really ran the nodes of an encoder's graph.

ONNX Runtime takes a list of execution providers and gives each node to the first that can run it.
A session that names CUDA first may compute most of its graph on the CPU without a message. The
profiler shows it: one profiled run names the provider of each node.
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

# ONNX Runtime reports its use to its maker unless this is disabled before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

RUN_SUFFIX = "_kernel_time"
"""The suffix of the one event of a node that is its run; older releases write others for its
fences."""

COPIES = {"MemcpyFromHost", "MemcpyToHost"}
"""The operators that ONNX Runtime adds between providers. Copying to a GPU is not computing on
it."""


@dataclass(frozen=True, slots=True)
class ProviderShare:
    """The part of the graph that one execution provider ran.

    Attributes
    ----------
    nodes : nodes of the graph.
    share : of all nodes that ran.
    seconds : in their kernels, as the host sees it. A GPU's kernels run asynchronously:
        this is their cost to the host, not how long the GPU computed.
    """

    nodes: int
    share: float
    seconds: float


Placement = Mapping[str, ProviderShare]
"""Name of an execution provider → what it ran; the one with most nodes first."""


def profile_first_run(options: onnxruntime.SessionOptions, directory: Path) -> None:
    """Have a session profiled from its start on, into a file in ``directory``."""
    options.enable_profiling = True
    options.profile_file_prefix = str(directory / "encoder")


def run_profiled(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, NDArray[Any]]
) -> Placement:
    """Run a session once and read where its nodes ran; profiling ends then.

    Raises
    ------
    ValueError : the session is not profiled, or its profile tells nothing of nodes.
    """
    session.run(None, dict(inputs), without_graph())
    written = session.end_profiling()
    if not written:
        raise ValueError("the session was started without a profile")
    return placement_of(json.loads(Path(written).read_text(encoding="utf-8")))


def placement_of(events: Iterable[Mapping[str, Any]]) -> Placement:
    """Return the part that each provider ran, by the events of a profile.

    Raises
    ------
    ValueError : no event names a node that ran, and its provider.
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
        raise ValueError("the profile names no node's provider")
    return {
        provider: ProviderShare(n, n / nodes.total(), microseconds[provider] * 1e-6)
        for provider, n in nodes.most_common()
    }
