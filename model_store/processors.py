"""The processors this process may use, fewer than the machine's in a container; and their kind."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Provider = Literal["cpu", "cuda", "tensorrt", "openvino", "coreml"]
ProviderChoice = Literal["auto", Provider]
"""The execution providers that an encoder may be run on, by name."""

PROVIDERS: Mapping[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}
"""ONNX Runtime's names of them."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


def usable_processors(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Whole processors within both the affinity mask and the CPU quota of the control group, ≥ 1.

    A thread beyond the quota does not compute more, it is made to wait in the middle of its work.

    Parameters
    ----------
    cgroups, own : where the kernel shows control groups, and which is ours.
    """
    masked = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [int(quota) for quota in _quotas(cgroups, own)]
    return max(1, min([masked or 1, *quotas]))


def int8_sums_overflow(machine: str = platform.machine(), cpuinfo: Path = _CPUINFO) -> bool:
    """Return whether sums of products of bytes may overflow 16 bits: on x86 without VNNI.

    Parameters
    ----------
    machine, cpuinfo : the architecture, and the file where Linux lists what processors can do;
        without it the answer is yes on x86.
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
    """CPU quotas, in processors, of our control group and those around it (versions 2 and 1)."""
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
        # Within a container the path may be the host's: what cannot be found there is not asked.
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
