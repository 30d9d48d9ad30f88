"""The cost of a part of the work: wall time, peak of memory, and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model_store.installation import DISTRIBUTION, installed_versions

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"
"""The value that makes the kernel reset the peak of memory (proc(5), clear_refs)."""

_LIBRARIES = (DISTRIBUTION, "torch", "torchvision", "numpy", "scikit-learn", "faiss-cpu")


@dataclass(slots=True)
class Cost:
    """The cost of one part of the work.

    Attributes
    ----------
    seconds : wall time.
    peak_bytes : peak memory of the process during this, including the memory held before.
    peak_gpu_bytes : most that torch held on the GPU; None where there is none.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    peak_gpu_bytes: int | None = None


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """Measure what happens within; the cost is filled in at the end."""
    cost = Cost()
    with contextlib.suppress(OSError):  # elsewhere than on Linux the peak is that since the start
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - started
    cost.peak_bytes = _peak_bytes()
    if torch.cuda.is_available():
        cost.peak_gpu_bytes = torch.cuda.max_memory_allocated()


def _peak_bytes() -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, Any]:
    """Describe the machine, with the versions of the libraries that compute."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": installed_versions(_LIBRARIES),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
