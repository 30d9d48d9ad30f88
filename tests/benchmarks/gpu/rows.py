"""Rows of a table that is measured unattended: one that fails says why, and the others go on."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from model_store.errors import ProviderUnavailable

Row = dict[str, Any]

WARM_UP = 3


def row(of: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> Row:
    """Return what is said of a row and what is measured; or why it was not."""
    try:
        return {**of, **measure()}
    except ProviderUnavailable as error:
        return {**of, "not_run": f"needs a GPU: {error}"}
    except Exception as error:  # whatever a driver says: the other rows are to be measured
        traceback.print_exc()
        return {**of, "failed": f"{type(error).__name__}: {error}"}


def timed(work: Callable[[], object], n_images: int, seconds: float) -> Row:
    """Repeat ``work`` for some seconds; images a second, and how long one turn takes."""
    for _ in range(WARM_UP):  # kernels are chosen and recorded by the first
        work()
    took: list[float] = []
    until = time.perf_counter() + seconds
    while not took or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return {
        "images_per_s": n_images * len(took) / sum(took),
        "p50_ms": 1000 * float(np.percentile(took, 50)),
        "p95_ms": 1000 * float(np.percentile(took, 95)),
    }
