"""The number of threads for arithmetic: one for a single query, several for many queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import faiss
from threadpoolctl import threadpool_limits

from model_store.processors import usable_processors

_USABLE_PROCESSORS = usable_processors()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the whole process, and restore the setting at the end.

    The matrix products of one query take microseconds, but BLAS still splits them. Its threads then
    spin until the last one gets a core. On two busy cores, a search took 53 ms with two threads and
    1.2 ms with one. Several threads serve queries at the same time, so all cores are used anyway.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@contextmanager
def faiss_threads(n: int) -> Iterator[None]:
    """Set FAISS to ``n`` threads, and restore the setting at the end.

    The setting is for the calling thread. If torch was imported first, it changes torch too: the
    order of sums would change, and training would give another model.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def threads_for(n_queries: int) -> int:
    """Return the number of threads for a search of ``n_queries`` at once.

    One query should not be split: waiting OpenMP threads made it three times as slow on two cores.
    """
    return 1 if n_queries == 1 else min(faiss.omp_get_max_threads(), _USABLE_PROCESSORS)
