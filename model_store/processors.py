"""The number and kind of processors that this process may use, for example in a container."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
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
