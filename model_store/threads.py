"""The number of threads for arithmetic: one query uses one thread, many queries use several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import faiss
from threadpoolctl import threadpool_limits

from model_store.machine import usable_processors

_USABLE_PROCESSORS = usable_processors()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the whole process, and restore the setting at the end.

    The matrix products of one query take microseconds, but BLAS still splits them between threads.
    The BLAS threads then spin until the last thread gets a core. On two busy cores, a search took
    53 ms with two BLAS threads, and 1.2 ms with one. All cores are still used, because several
    threads serve queries at the same time.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@contextmanager
def faiss_threads(n: int) -> Iterator[None]:
    """Set FAISS to ``n`` threads, and restore the setting at the end.

    The setting is only for the calling thread. If PyTorch was imported before FAISS, the setting
    also applies to PyTorch. The order of sums in a training would then change, and give another
    model.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def threads_for(n_queries: int) -> int:
    """Return the number of threads for a search with ``n_queries`` queries in one call.

    The search for a single query uses only one thread. On two cores, a search with waiting OpenMP
    threads took three times as long as a search without these threads.
    """
    return 1 if n_queries == 1 else min(faiss.omp_get_max_threads(), _USABLE_PROCESSORS)
