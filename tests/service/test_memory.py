"""Memory, as the system sees it: measured in a process of its own."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from service.processes.memory import freeze_garbage, large_pages

N_BLOCKS = 100

FAULTS = f"""
import resource, sys
from service.processes.memory import tune_malloc
if sys.argv[1] == "kept":
    tune_malloc()
def fault_count():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(2**20)
before = fault_count()
for _ in range({N_BLOCKS}):
    block, another = bytearray(2**20), bytearray(2**20)
    del block, another
print(fault_count() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is tuned")
@pytest.mark.process
def test_blocks_of_a_query_are_not_fetched_anew() -> None:
    faults = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, way], check=True, capture_output=True, text=True
            ).stdout
        )
        for way in ("given_back", "kept")
    }
    assert faults["kept"] < 1000  # two blocks of 256 pages, once
    assert faults["given_back"] > 5 * faults["kept"]


HELD = """
held = bytearray(64 * 2**20)
advised = size = 0
for line in open("/proc/self/smaps"):
    name, _, value = line.partition(":")
    if name == "Size":
        size = int(value.split()[0])
    elif name == "VmFlags" and "hg" in value.split():
        advised += size
print(advised)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is tuned")
@pytest.mark.process
def test_an_encoder_asks_for_large_pages() -> None:
    """The kernel is told of every block; whether it has large pages to give is its own affair."""
    offered = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not offered.exists() or "[madvise]" not in offered.read_text(encoding="ascii"):
        pytest.skip("the system gives large pages to everybody, or to nobody")
    advised_kib = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", HELD],
                check=True,
                capture_output=True,
                text=True,
                env=os.environ | added,
            ).stdout
        )
        for way, added in {"small": {}, "large": large_pages(os.environ)}.items()
    }
    assert advised_kib["small"] < 16 * 1024
    assert advised_kib["large"] >= 64 * 1024


def test_what_an_operator_says_of_them_counts() -> None:
    tuned = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert large_pages(tuned) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0"}


def test_garbage_is_not_looked_for_in_what_is_there() -> None:
    freeze_garbage()
    try:
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 10_000
    finally:  # as the suite began
        gc.unfreeze()
        gc.collect()
        gc.freeze()
