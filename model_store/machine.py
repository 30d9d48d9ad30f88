"""The number and kind of processors that this process may use, and settings of memory and BLAS.

A container, for example, limits the number of processors. The settings of memory are those of the
allocator and of the garbage collector.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Provider = Literal["cpu", "cuda", "tensorrt", "openvino", "coreml"]
ProviderChoice = Literal["auto", Provider]
"""Names of the execution providers for encoders."""

PROVIDERS: Mapping[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}
"""ONNX Runtime's name of each execution provider."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


def usable_processors(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Return the number of processors that the affinity mask and the CPU quota allow, at least 1.

    More threads than the quota allows do not compute faster, because the kernel suspends them.

    Parameters
    ----------
    cgroups : directory of the control groups.
    own : file with the control group of this process.
    """
    masked = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [int(quota) for quota in _quotas(cgroups, own)]
    return max(1, min([masked or 1, *quotas]))


def int8_sums_overflow(machine: str = platform.machine(), cpuinfo: Path = _CPUINFO) -> bool:
    """Return whether sums of byte products may overflow 16 bits, for example on x86 without VNNI.

    Parameters
    ----------
    machine : architecture of the processor.
    cpuinfo : Linux file that lists the processor's features. If this file cannot be read, the
        result is True on x86.
    """
    if machine.lower() not in {"x86_64", "amd64"}:
        return False
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return not {"avx512_vnni", "avx_vnni"} & set(flags.split())


def _quotas(cgroups: Path, own: Path) -> list[float]:
    """Return the CPU quotas, in processors, of this control group and its parents."""
    try:
        memberships = own.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = []
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        inside = Path(path.lstrip("/"))
        # In a container, the path may be a path on the host; missing directories are skipped.
        for group in {root, *(root / part for part in (inside, *inside.parents))}:
            quota = _quota_v1(group) if controllers else _quota_v2(group)
            if quota is not None:
                found.append(quota)
    return found


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((group / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if quota < 0 else quota / period


@dataclass(frozen=True, slots=True)
class KeptMemory:
    """Limits on the freed memory that a process keeps.

    Attributes
    ----------
    block_bytes : size of the largest block that is kept.
    n_bytes : total size of the kept blocks.
    """

    block_bytes: int
    n_bytes: int


OF_QUERIES = KeptMemory(8 * 2**20, 32 * 2**20)
"""The limits for a service. The largest kept block is 20 times the data of a query."""

OF_INDEXING = KeptMemory(32 * 2**20, 128 * 2**20)
"""The limits for indexing. A batch of 64 images at 224 pixels takes 10 MB, and is copied several
times between decoder and encoder. glibc cannot keep blocks above 32 MiB."""

GARBAGE_THRESHOLD = 10_000
"""Number of new objects after which the garbage collector runs."""

_LARGE_PAGES = "glibc.malloc.hugetlb=1"

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""


def tune_malloc(kept: KeptMemory = OF_QUERIES) -> None:
    """Let the C library keep freed memory for the next query or batch.

    By default, glibc returns every freed block above 128 KiB to the system immediately. The system
    must then clear new pages for the next query. These pages cost 26 page faults per query: a tenth
    of the service's CPU time, if the encoder's time is not counted. With other C libraries, the
    function has no effect.
    """
    with suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_M_MMAP_THRESHOLD, kept.block_bytes)
        tune(_M_TRIM_THRESHOLD, kept.n_bytes)


def raise_gc_threshold() -> None:
    """Let the garbage collector run less often than by default.

    A query creates 700 objects and no reference cycles. With the default threshold, the collector
    took 0.08 ms per query.
    """
    gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])


def freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection.

    A collection over all imported objects takes 0.1 to 0.3 s, and blocks all requests.
    """
    gc.collect()
    gc.freeze()


def malloc_environment() -> dict[str, str]:
    """Return the settings of `tune_malloc` as environment variables for a new process."""
    return {
        "MALLOC_MMAP_THRESHOLD_": str(OF_QUERIES.block_bytes),
        "MALLOC_TRIM_THRESHOLD_": str(OF_QUERIES.n_bytes),
    }


def large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make a new process use large pages.

    An encoder reads all its weights for every image, and spends 3 to 5 % of its time on page
    lookups. The variables have no effect if the system has no large pages, or if the C library is
    not glibc.
    """
    tunables = [_LARGE_PAGES, environment.get("GLIBC_TUNABLES")]  # of two, the last counts
    return {"GLIBC_TUNABLES": ":".join(filter(None, tunables))}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the whole process, and restore the setting at the end.

    The matrix products of one query take microseconds, but BLAS still splits them between threads.
    The BLAS threads then spin until the last thread gets a core. On two busy cores, a search took
    53 ms with two BLAS threads, and 1.2 ms with one. All cores are still used, because several
    threads serve queries at the same time.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - slow

    with threadpool_limits(limits=1, user_api="blas"):
        yield
