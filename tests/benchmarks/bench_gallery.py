"""Galleries of 10⁴, 10⁵ and 10⁶ items: recall, search time, memory, and what uncertainty costs.

Directions, norms and variances are those of a real bundle (Fashion-MNIST, 128 dimensions). A
thousand of its items are kept out as queries. Where items run out, copies of them are moved by
Gaussian noise of half the distance to the tenth nearest item, and keep their variance and label.
Each size is measured in a process of its own, after a pass that warms up, on one thread and by the
time that this thread computes, the kinds of search in turn: a busy machine falls on all or none.

- *plain*: FAISS alone, the same index and parameters, as many candidates;
- *uncertain*: `two_stage_search`: candidates once, a hundred predictive samples against them;
- *all samples*: the plain search with every predictive sample, all in one call; and for ten items
  each, where nobody needs candidates to decide from. They vote by the label of their nearest item.

    python -m tests.benchmarks.bench_gallery [BUNDLE] [--peers] [--sizes 10000 100000]

Writes build/bench-gallery.json. `--peers` measures hnswlib, usearch, milvus-lite and
qdrant-client's local mode too (extra `bench`), on the 10⁵ items: see `bench_peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray

from model_store.bundles.directory import locate
from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    Allowed,
    FaissGallery,
    Gallery,
    IndexSettings,
    NewItem,
    Thumbnail,
    parse_filter,
    write_faiss_parts,
)
from model_store.gallery.files.gallery import GALLERY_FILES
from model_store.gallery.index.build import BLOCK_ROWS
from model_store.gallery.index.plan import DEFAULT_SETTINGS
from model_store.gallery.index.search import INDEX_FILE
from model_store.gallery.protocol import AT_ONCE, Part
from model_store.predictive import Noise, Predictive, predict
from model_store.search import N_CANDIDATES, Neighbours, two_stage_search
from model_store.sphere import base_noise
from tests.benchmarks.measured import record_figures
from tests.benchmarks.preconditions import built

BUNDLE = Path("bundles/fashion-mnist")
WORK = Path("build/bench-gallery")
REPORT = Path("build/bench-gallery.json")
SIZES = (10_000, 100_000, 1_000_000)
N_QUERIES = 1_000
N_ALL_SAMPLES = 200
"""Queries whose every sample is searched, which takes a hundred times as long."""
K = 10
FILTERS: dict[str, dict[str, Any]] = {
    "wide": {"thousandth": {"gte": 500}},
    "narrow": {"thousandth": {"lt": 50}},
    "very_narrow": {"thousandth": 7},
}

Floats = NDArray[np.float32]


def measure(bundle: Path = BUNDLE, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Build and measure each size; the named ratios, and what lies behind them."""
    found: dict[str, Any] = {}
    for n_items in sizes:
        directory = WORK / str(n_items)
        if not (directory / "truth.npy").exists():
            build(bundle, directory, n_items)
        module = "tests.benchmarks.bench_gallery"
        command = [sys.executable, "-m", module, "--measure", str(directory)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        found |= {
            f"gallery_{n_items}_{name}": value for name, value in json.loads(done.stdout).items()
        }
    least, most = (f"gallery_{n}_" for n in (min(sizes), max(sizes)))
    every = [f"gallery_{n}_" for n in sizes]
    if sizes == SIZES:
        found["recall_at_10_1e6"] = found[f"{most}recall_at_10"]
        found["search_growth_1e4_1e6"] = (
            found[f"{most}uncertain_ms"] / found[f"{least}uncertain_ms"]
        )
    for ratio in ("uncertain_over_plain_search", "two_stage_over_all_samples"):
        found[ratio] = max(found[size + ratio] for size in every)
    for of, name in (("label", "same_vote_share"), ("item", "same_item_vote_share")):
        found[name] = min(found[f"{size}same_{of}_vote"] for size in every)
    return found


def _thousandth(row: int) -> dict[str, Any]:
    return {"thousandth": row % 1000}


def build(
    bundle: Path,
    directory: Path,
    n_items: int,
    metadata: Callable[[int], dict[str, Any]] = _thousandth,
    picture: bytes = b"a picture" * 60,
    n_queries: int = N_QUERIES,
    settings: IndexSettings = DEFAULT_SETTINGS,
) -> None:
    """A gallery, the queries kept out of it, and their nearest items by exact search.

    No more of it is in memory at a time than copies of all real items.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in GALLERY_FILES:
        (directory / name).unlink(missing_ok=True)
    source = FaissGallery(locate(bundle))
    rows = np.random.default_rng(0).permutation(source.n_items)
    kept_out, rows = rows[:n_queries], rows[n_queries:]
    queries = source.directions(kept_out)
    nearest = Nearest(queries, K)
    made = _Made(source, rows, nearest, metadata, Thumbnail(picture, "image/png"))
    started, computed = time.perf_counter(), time.process_time()
    shape = n_items, source.dim
    write_faiss_parts(directory, shape, made.parts(n_items), "benchmark", settings)
    took = np.array([time.perf_counter() - started, time.process_time() - computed])
    np.save(directory / "build_s.npy", took - made.seconds)
    np.save(directory / "queries.npy", queries)
    np.save(directory / "query_variances.npy", source.variances(kept_out))
    np.save(directory / "truth.npy", nearest.rows)


class Nearest:
    """The ``k`` nearest of directions that come some at a time, by exact search.

    Attributes
    ----------
    rows : (n, k) of the nearest so far, nearest first.
    """

    def __init__(self, queries: Floats, k: int) -> None:
        self._queries, self._k = queries, k
        self._similarities = np.empty((len(queries), 0), np.float32)
        self.rows = np.empty((len(queries), 0), np.int64)

    def add(self, directions: Floats, rows: NDArray[np.int64]) -> None:
        """Compare ``directions`` (m, D), which are those of ``rows`` (m,)."""
        k = min(self._k, len(rows))
        near, found = faiss.knn(self._queries, directions, k, faiss.METRIC_INNER_PRODUCT)
        similarities = np.hstack([self._similarities, near])
        every = np.hstack([self.rows, rows[found]])
        best = np.argsort(-similarities, axis=1, kind="stable")[:, : self._k]
        self._similarities = np.take_along_axis(similarities, best, axis=1)
        self.rows = np.take_along_axis(every, best, axis=1)


class _Made:
    """Items that are made as they are asked for, in the order of their ids.

    Parameters
    ----------
    nearest : told of all of them.

    Attributes
    ----------
    seconds : by the clock and of the processor, that all this has taken.
    """

    def __init__(
        self,
        source: FaissGallery,
        rows: NDArray[np.int64],
        nearest: Nearest,
        metadata: Callable[[int], dict[str, Any]],
        picture: Thumbnail,
    ) -> None:
        self._source, self._rows, self._nearest = source, rows, nearest
        self._metadata, self._picture = metadata, picture
        self.seconds = np.zeros(2)

    def parts(self, n_items: int) -> Iterator[Part]:
        """``n_items`` of them."""
        start = 0
        copies = _moved_copies(self._source.directions(self._rows), n_items)
        while start < n_items:
            began = np.array([time.perf_counter(), time.process_time()])
            directions = next(copies)
            self._nearest.add(directions, np.arange(start, start + len(directions)))
            self.seconds += np.array([time.perf_counter(), time.process_time()]) - began
            for first in range(0, len(directions), AT_ONCE):
                yield self._part(directions[first : first + AT_ONCE], start + first)
            start += len(directions)

    def _part(self, directions: Floats, first: int) -> Part:
        numbers = range(first, first + len(directions))
        of = self._rows[np.arange(numbers.start, numbers.stop) % len(self._rows)]
        items = [
            NewItem(
                f"{number:08d}", self._source.labels[code], self._metadata(number), self._picture
            )
            for number, code in zip(numbers, self._source.label_codes(of), strict=True)
        ]
        nothing = np.empty((len(items), 0), dtype=np.float32)
        return Embeddings(directions, self._source.variances(of), nothing), items


def _moved_copies(real: Floats, n_items: int) -> Iterator[Floats]:
    """``n_items`` unit vectors: the real ones first, then moved copies of all of them in turn."""
    yield real[:n_items]
    if n_items <= len(real):
        return
    generator = np.random.default_rng(1)
    lists = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(real.shape[1]), real.shape[1], 256, faiss.METRIC_INNER_PRODUCT
    )
    lists.train(real)
    lists.add(real)
    lists.nprobe = 8
    similarities, _ = lists.search(real, K + 1)
    reach = np.sqrt(np.maximum(2 - 2 * similarities[:, -1], 0)) / 2
    for start in range(len(real), n_items, len(real)):
        of = slice(0, min(len(real), n_items - start))
        noise = generator.standard_normal(real[of].shape, dtype=np.float32)
        moved = real[of] + (reach[of] / np.sqrt(real.shape[1]))[:, None] * noise
        yield moved / np.linalg.norm(moved, axis=1, keepdims=True)


def measure_built(directory: Path, n_all_samples: int = N_ALL_SAMPLES) -> dict[str, Any]:
    """Open a gallery in this process, and search it on one thread."""
    faiss.omp_set_num_threads(1)
    queries = np.load(directory / "queries.npy")
    predictives = predictives_of(queries, np.load(directory / "query_variances.npy"))
    truth = np.load(directory / "truth.npy")
    process = psutil.Process()
    before = process.memory_info().rss
    started = time.perf_counter()
    gallery = FaissGallery(directory)
    found: dict[str, Any] = {"open_s": time.perf_counter() - started}
    found["opened_mib"] = (process.memory_info().rss - before) / 2**20
    rows = gallery.candidates(queries, K).rows  # warms up
    found["recall_at_10"] = overlap(rows, truth)
    for predictive in predictives:
        searched(gallery, predictive)
    after = process.memory_info().rss - before
    plain = faiss.read_index(str(directory / INDEX_FILE))
    noise = noise_for(gallery.dim).of_query
    seconds = medians(
        len(queries),
        plain=lambda at: plain.search(queries[at : at + 1], N_CANDIDATES),
        plain_10=lambda at: plain.search(queries[at : at + 1], K),
        candidates=lambda at: gallery.candidates(queries[at : at + 1], N_CANDIDATES),
        uncertain=lambda at: searched(gallery, predictives[at]),
    )
    seconds |= medians(
        n_all_samples,
        all_samples=lambda at: plain.search(predictives[at].samples(noise), N_CANDIDATES),
        all_samples_10=lambda at: plain.search(predictives[at].samples(noise), K),
    )
    found |= {f"{name}_ms": 1000 * median for name, median in seconds.items()}
    found |= _filtered(gallery, queries[:n_all_samples])
    arithmetic = _arithmetic(gallery)
    return found | {
        "engine": gallery.index_type,
        **dict(
            zip(
                ("build_s", "build_processor_s"),
                np.load(directory / "build_s.npy").tolist(),
                strict=True,
            )
        ),
        "recall_written_down": gallery.index.recall_at_10,
        "searched_mib": after / 2**20,
        "arithmetic_mib": arithmetic / 2**20,
        "resident_over_arithmetic": after / arithmetic,
        "disk_mib": sum(
            (directory / n).stat().st_size for n in GALLERY_FILES if (directory / n).exists()
        )
        / 2**20,
        "uncertain_over_plain_search": seconds["uncertain"] / seconds["plain"],
        "two_stage_over_all_samples": seconds["uncertain"] / seconds["all_samples"],
        **_votes(gallery, plain, predictives[:n_all_samples]),
    }


@lru_cache
def noise_for(dim: int) -> Noise:
    """Noise for a hundred samples of embeddings of this dimension."""
    return Noise(base_noise("benchmark", 100, dim), base_noise("items", 100, N_CANDIDATES))


def searched(gallery: Gallery, query: Predictive, allowed: Allowed | None = None) -> Neighbours:
    """Search as the service does."""
    return two_stage_search(gallery, query, K, allowed=allowed, noise=noise_for(gallery.dim))


def predictives_of(queries: Floats, variances: Floats) -> list[Predictive]:
    nothing = np.empty((len(queries), 0), dtype=np.float32)
    return predict(Embeddings(queries, variances, nothing), np.full(len(queries), np.nan))


def _arithmetic(gallery: FaissGallery) -> int:
    """Bytes of the index and, where it is approximate, of the directions it ranks again by."""
    directions = 4 * gallery.n_items * gallery.dim
    return gallery.index.n_bytes + (0 if gallery.index.kind == "flat" else directions)


def _votes(gallery: FaissGallery, plain: Any, predictives: list[Predictive]) -> dict[str, float]:
    """How often two stages and searching every sample agree on what most samples are nearest to."""
    same = {"label": 0, "item": 0}
    for predictive in predictives:
        samples = predictive.samples(noise_for(gallery.dim).of_query)
        rows = searched(gallery, predictive).rows
        ours = rows[(samples @ gallery.directions(rows).T).argmax(axis=1)]
        theirs = plain.search(samples, 1)[1][:, 0]
        same["item"] += _winner(ours) == _winner(theirs)
        labels = gallery.label_codes(ours), gallery.label_codes(theirs)
        same["label"] += _winner(labels[0]) == _winner(labels[1])
    return {f"same_{of}_vote": count / len(predictives) for of, count in same.items()}


def _winner(votes: NDArray[Any]) -> int:
    values, counts = np.unique(votes, return_counts=True)
    return int(values[counts.argmax()])


def overlap(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    shares = [len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)]
    return float(np.mean(shares))


def medians(n: int, **searches: Callable[[int], object]) -> dict[str, float]:
    """Median seconds of each kind of search over ``n`` queries."""
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    for at in range(n):
        for name, search in searches.items():
            started = time.thread_time()
            search(at)
            seconds[name].append(time.thread_time() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _search_among(
    gallery: FaissGallery, queries: Floats, allowed: Allowed
) -> Callable[[int], object]:
    return lambda at: gallery.candidates(queries[at : at + 1], K, allowed)


def _filtered(gallery: FaissGallery, queries: Floats) -> dict[str, float]:
    """Filters that let much, little and very little through: their rows, recall and search time."""
    found = {}
    for name, where in FILTERS.items():
        started = time.perf_counter()
        allowed = gallery.matching(parse_filter(where))
        found[f"filter_{name}_matching_ms"] = 1000 * (time.perf_counter() - started)
        rows = allowed.rows()
        [median] = medians(
            len(queries),
            search=_search_among(gallery, queries, allowed),
        ).values()
        truth = Nearest(queries, K)
        for start in range(0, len(rows), BLOCK_ROWS):
            some = rows[start : start + BLOCK_ROWS]
            truth.add(gallery.directions(some), some)
        found |= {
            f"filter_{name}_share": len(rows) / gallery.n_items,
            f"filter_{name}_ms": 1000 * median,
            f"filter_{name}_recall_at_10": overlap(
                gallery.candidates(queries, K, allowed).rows, truth.rows
            ),
        }
    return found


def main() -> None:
    """Print, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--measure", type=Path, help="one gallery that was built, in this process")
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure_built(options.measure)))
        return
    found = measure(built(options.bundle, "fashion-mnist"), tuple(options.sizes))
    _write(found)
    if options.peers:
        from tests.benchmarks import bench_peers

        found["peers"] = bench_peers.measure(WORK / str(bench_peers.N_ITEMS))
        _write(found)


def _write(found: dict[str, Any]) -> None:
    text = json.dumps(found, indent=1, sort_keys=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    record_figures("gallery", found, globals())


if __name__ == "__main__":
    main()
