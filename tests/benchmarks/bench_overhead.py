"""What deciding costs: the same query, in one process, with and without the decision layer.

With it: outlier score, match probabilities and intervals, result set, verdict. Without: decoding,
encoding, two-stage search. Asked alternately, so that a slow moment of the machine falls on both,
and one after the other in either order: the second finds the items of its answer in the caches.

    python -m tests.benchmarks.bench_overhead BUNDLE
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from model_store import open_bundle
from model_store.retriever import Retriever
from tests.benchmarks.bench_http import WARM_UP, some_images


def measure(bundle: Path) -> dict[str, float]:
    """Median milliseconds, and their ratio."""
    whole = open_bundle(bundle, provider="cpu").retriever
    retrievers = {"with": whole, "without": Retriever(whole.encoder, whole.gallery, None)}
    seconds: dict[str, list[float]] = {name: [] for name in retrievers}
    for number, data in enumerate(some_images(whole.encoder.metadata.preprocessing.height)):
        for name in list(retrievers)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            retrievers[name].search(data)
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    median = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    return {
        "decision_overhead": median["with"] / median["without"],
        "query_without_decision_p50_ms": median["without"],
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=1))
