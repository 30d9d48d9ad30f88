"""Threads are given for a while, and what was set is put back."""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

from model_store.machine import one_blas_thread


def test_blas_gets_its_threads_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def blas_threads() -> set[int]:
    """Threads of the BLAS libraries that have threads of their own."""
    return {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas" and library["threading_layer"] == "pthreads"
    }
