"""Memory, as the system sees it: measured in a process of its own."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from model_store.machine import freeze_garbage, large_pages
from tests.support.page_faults import PAGE

QUERY, BLOCK = (2**20, 2), (10 * 2**20, 4)
"""Sizes of blocks, and how many there are at once: of a query; of images that are indexed."""

TUNED = """
from model_store.machine import *
from tests.support.page_faults import faults_of_blocks
{}
print(faults_of_blocks(*{}))
"""
INDEXING = "tune_malloc(OF_INDEXING)"

VOUCH_BUILD = """
from index_builder import __main__ as command
from index_builder.commands import app as commands
from tests.support.page_faults import faults_of_blocks
commands.app = lambda **_: print(faults_of_blocks(*{}))
command.main()
"""

of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is tuned")


def faults(script: str) -> int:
    """What a script prints, in a process of its own."""
    command = [sys.executable, "-c", script]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@of_glibc
@pytest.mark.process
@pytest.mark.parametrize(
    ("tuning", "blocks"), [("tune_malloc()", QUERY), (INDEXING, BLOCK)], ids=["query", "indexing"]
)
def test_blocks_are_not_fetched_anew(tuning: str, blocks: tuple[int, int]) -> None:
    once = blocks[0] * blocks[1] // PAGE
    assert faults(TUNED.format(tuning, blocks)) < 2 * once
    assert faults(TUNED.format("", blocks)) > 10 * once


@of_glibc
@pytest.mark.process
def test_what_builds_a_gallery_keeps_them() -> None:
    assert faults(VOUCH_BUILD.format(BLOCK)) < 2 * BLOCK[0] * BLOCK[1] // PAGE


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


@of_glibc
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
