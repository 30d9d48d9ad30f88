"""What a part of the work costs: wall time and the peak of memory."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"
"""What the kernel wants to read there (proc(5))."""


@dataclass(slots=True)
class Cost:
    """Of one part.

    Attributes
    ----------
    seconds : wall time.
    peak_bytes : most memory that the process held meanwhile, what it held before included.
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
