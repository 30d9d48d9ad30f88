"""Settings of the memory allocator and the garbage collector."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass


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
