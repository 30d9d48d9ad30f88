"""Settings of the allocator, by which the process keeps the memory that it has freed."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """The freed memory that a process keeps.

    Attributes
    ----------
    block_bytes : of the largest block that is kept.
    n_bytes : of all that is kept.
    """

    block_bytes: int
    n_bytes: int


OF_QUERIES = Kept(8 * 2**20, 32 * 2**20)
"""A query's pictures, samples and candidates are a twentieth of such a block."""

OF_INDEXING = Kept(32 * 2**20, 128 * 2**20)
"""The 64 images of a block at 224 pixels are 10 MB, several times over on their way from a decoder
to an encoder. glibc keeps no larger block than this."""

GARBAGE_THRESHOLD = 10_000
"""New objects after which the garbage collector examines the youngest generation."""

_LARGE_PAGES = "glibc.malloc.hugetlb=1"

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""


def tune_malloc(kept: Kept = OF_QUERIES) -> None:
    """Have the C library keep what a query, or a block of images, frees for the next one.

    By default it returns every block of more than 128 KiB to the system at once, which then has
    to clear fresh pages for the next: 26 page faults a query, and a tenth of what the service
    computes beside the encoder. Other C libraries than glibc are unchanged.
    """
    with suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_M_MMAP_THRESHOLD, kept.block_bytes)
        tune(_M_TRIM_THRESHOLD, kept.n_bytes)


def raise_gc_threshold() -> None:
    """Have Python look for unreachable cycles after more new objects than by default.

    A query leaves none, and 700 objects come together within one: looking took 0.08 ms of each.
    """
    gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])


def freeze_garbage() -> None:
    """Have Python look for no garbage among what the process has made so far.

    Looking through all that was imported takes 0.1 to 0.3 s, in which no request is answered.
    """
    gc.collect()
    gc.freeze()


def malloc_environment() -> dict[str, str]:
    """The same, as the environment of a process that is to be started."""
    return {
        "MALLOC_MMAP_THRESHOLD_": str(OF_QUERIES.block_bytes),
        "MALLOC_TRIM_THRESHOLD_": str(OF_QUERIES.n_bytes),
    }


def large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make a process started in ``environment`` use large pages.

    An encoder reads all its weights for every image, and spends 3 to 5 % of its time on looking up
    their pages. Where the system has no large pages to give, or another C library than glibc,
    nothing changes.
    """
    tunables = [_LARGE_PAGES, environment.get("GLIBC_TUNABLES")]  # of two, the last counts
    return {"GLIBC_TUNABLES": ":".join(filter(None, tunables))}
