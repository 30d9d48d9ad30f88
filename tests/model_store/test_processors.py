"""What a process may use of a machine, read as the kernel shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from model_store.machine import int8_sums_overflow, usable_processors

HAS = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def usable(tmp_path: Path, own: str, files: Mapping[str, str]) -> int:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return usable_processors(tmp_path, tmp_path / "own")


@pytest.mark.parametrize(
    ("quota", "wanted"),
    [
        ("max 100000", 16),
        ("200000 100000", 2),
        ("150000 100000", 1),  # half a processor is none to put a thread on
        ("20000 100000", 1),
        ("9900000 100000", 16),
        ("garbage", 16),
    ],
)
def test_the_quota_of_version_2(tmp_path: Path, quota: str, wanted: int) -> None:
    assert usable(tmp_path, "0::/\n", {"cpu.max": quota}) == wanted


def test_the_narrowest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000", "cpu.max": "max 100000"}
    assert usable(tmp_path, "0::/a/b\n", files) == 3
    files = {"a/cpu.max": "200000 100000"}
    assert usable(tmp_path, "0::/a/b\n", files) == 2


def test_a_path_of_the_host_is_not_found_inside_a_container(tmp_path: Path) -> None:
    files = {"cpu.max": "500000 100000"}
    assert usable(tmp_path, "0::/docker/0123abcd\n", files) == 5


def test_the_quota_of_version_1(tmp_path: Path) -> None:
    own = "7:memory:/x\n4:cpu,cpuacct:/box\n0::/\n"
    folder = "cpu,cpuacct/box"
    files = {f"{folder}/cpu.cfs_quota_us": "250000", f"{folder}/cpu.cfs_period_us": "100000"}
    assert usable(tmp_path, own, files) == 2
    assert usable(tmp_path, own, {f"{folder}/cpu.cfs_quota_us": "-1"}) == 16


def test_where_the_kernel_shows_nothing_the_mask_counts(tmp_path: Path) -> None:
    assert usable_processors(tmp_path, tmp_path / "none") == 16


def test_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= usable_processors() <= HAS


@pytest.mark.parametrize(
    ("machine", "flags", "wanted"),
    [
        ("x86_64", "flags\t\t: fpu avx2 avx512_vnni\n", False),
        ("AMD64", "flags\t\t: fpu avx2 avx_vnni\n", False),
        ("x86_64", "flags\t\t: fpu avx2 avx512f\n", True),
        ("x86_64", "bugs\t\t: avx_vnni\n", True),
        ("x86_64", None, True),
        ("aarch64", "Features\t: asimd\n", False),
        ("arm64", None, False),
    ],
)
def test_int8_sums_overflow_on_x86_without_vnni(
    machine: str, flags: str | None, wanted: bool, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\n{flags}")
    assert int8_sums_overflow(machine, cpuinfo) is wanted
