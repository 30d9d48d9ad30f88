"""Freed memory stays with the process: measured in one of its own, by its page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

N_BLOCKS = 100

FAULTS = f"""
import resource, sys
from service.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
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
