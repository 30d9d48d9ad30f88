"""How many threads FAISS gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import faiss

from model_store.processors import usable_processors

_USABLE_PROCESSORS = usable_processors()


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
    """As many as that many queries are worth.

    One query is not worth splitting: OpenMP's threads, waiting for each other, made it take three
    times as long on two cores.
    """
    return 1 if n_queries == 1 else min(faiss.omp_get_max_threads(), _USABLE_PROCESSORS)
