"""Measurement of wall time and peak memory, and a description of the machine."""

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
"""Writing this value to clear_refs resets the peak memory of the process, see proc(5)."""

_LIBRARIES = (DISTRIBUTION, "torch", "torchvision", "numpy", "scikit-learn", "faiss-cpu")


@dataclass(slots=True)
class Cost:
    """The cost of a stage, such as the training.

    Attributes
    ----------
    seconds : wall time.
    peak_bytes : peak memory of the process, including memory that was allocated before the stage.
    peak_gpu_bytes : peak GPU memory of torch; None without a GPU.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    peak_gpu_bytes: int | None = None


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """Measure the cost of the code in a ``with`` block; the end of the block sets the values."""
    cost = Cost()
    with contextlib.suppress(OSError):  # without this reset, the peak counts from the process start
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
    """Describe the machine and the versions of the numeric libraries."""
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
