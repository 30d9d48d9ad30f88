"""What deciding costs: the same query, in one process, with and without the decision layer.

With it: outlier score, match probabilities and intervals, result set, verdict. Without: decoding,
encoding, two-stage search. And the same under filters of up to half of the labels, each another:
probabilities are then those of the whole gallery, which is searched as well. Asked in turns, so
that a slow moment of the machine falls on all, and in either order: the last finds the items of its
answer in the caches.

    python -m tests.benchmarks.bench_overhead BUNDLE
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from model_store import open_bundle
from model_store.answers import Answer
from model_store.gallery.filters.grammar import Filter, parse_filter
from model_store.retriever import Retriever
from tests.benchmarks.bench_http import WARM_UP, some_images


def measure(bundle: Path) -> dict[str, float]:
    """Median milliseconds, and their ratios."""
    whole = open_bundle(bundle, provider="cpu").retriever
    without = Retriever(whole.encoder, whole.gallery, None)
    generator = np.random.default_rng(0)
    asked: dict[str, Callable[[bytes, Filter], Answer]] = {
        "with": lambda data, _: whole.search(data),
        "without": lambda data, _: without.search(data),
        "filtered": lambda data, where: whole.search(data, where=where),
    }
    seconds: dict[str, list[float]] = {name: [] for name in asked}
    for number, data in enumerate(some_images(whole.encoder.metadata.preprocessing.height)):
        where = _some_labels(whole.gallery.labels, generator)
        for name in list(asked)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            asked[name](data, where)
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    median = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    return {
        "decision_overhead": median["with"] / median["without"],
        "filtered_query_over_unfiltered": median["filtered"] / median["with"],
        "query_without_decision_p50_ms": median["without"],
    }


def _some_labels(labels: Sequence[str], generator: np.random.Generator) -> Filter:
    """Return a filter that lets between one and half of the labels through."""
    n = int(generator.integers(1, len(labels) // 2, endpoint=True))
    return parse_filter({"label": {"in": generator.choice(labels, n, replace=False).tolist()}})


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=1))
