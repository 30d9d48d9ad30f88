"""The number of threads for arithmetic: one to decide a query, several for many queries at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import faiss
from threadpoolctl import threadpool_limits

from model_store.processors import usable_processors

_USABLE_PROCESSORS = usable_processors()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give BLAS one thread in the whole process, and put back what was set.

    The products behind one query take microseconds, and BLAS still splits them. Its threads
    then spin until the last of them has been given a core: on two cores that other processes keep
    busy, a search took 53 ms with two threads and 1.2 ms with one. Queries are served by several
    threads at once, so the cores are used without BLAS splitting each of them.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@contextmanager
def faiss_threads(n: int) -> Iterator[None]:
    """Give FAISS ``n`` threads, and put back what was set.

    The setting is the calling thread's, but where torch was imported first it is torch's too, and
    sums in another order would train another model.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def threads_for(n_queries: int) -> int:
    """Return the number of threads for a search of ``n_queries`` at once.

    One query is not worth splitting: OpenMP's threads, waiting for each other, made it take three
    times as long on two cores.
    """
    return 1 if n_queries == 1 else min(faiss.omp_get_max_threads(), _USABLE_PROCESSORS)
