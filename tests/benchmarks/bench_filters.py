"""Filters that were never asked before, on 10⁶ items, beside the same search without a filter.

The gallery is that of `bench_gallery`, its items with metadata as a shop has them: a price, a year,
the name of a maker, tags, and a field that half of them have. For each share of the items that a
filter lets through, six kinds of filters take turns, each time with other values: a range of
numbers, a range of texts, a list that holds a text, a field that is there (these two with a range
besides), one of two ranges, and two ranges by what lies beyond them. Timed is what a search
takes from the parsed filter on, `Gallery.matching` and `two_stage_search`, in turn with the search
without a filter; on one thread, by the time that this thread computes.

- *indexed*: the fields have indexes in the files, as `vouch-build index` makes them;
- *live*: the same with 10,000 items put into it since it was built, and 1,000 taken out;
- *looked at*: every item is looked at, as before there were indexes;
- *learned*: the first filter on a field that has no index, which makes one in memory.

    python -m tests.benchmarks.bench_filters [BUNDLE] [--items 1000000]

Writes build/bench-filters.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np

from model_store.gallery import (
    ChangesFile,
    Delete,
    FaissGallery,
    Filter,
    Gallery,
    LiveGallery,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    parse_filter,
)
from model_store.gallery.files import fields
from model_store.gallery.files.fields import COLUMNS_FILE, FIELDS_FILE
from model_store.predictive import Predictive
from tests.benchmarks.bench_gallery import BUNDLE, K, build, overlap, predictives_of, searched
from tests.benchmarks.measured import record_figures
from tests.benchmarks.preconditions import built

WORK = Path("build/bench-filters")
REPORT = Path("build/bench-filters.json")
SHARES = (0.001, 0.05, 0.5)
N_TIMED = 200
N_LOOKED_AT = 5
"""Filters for which every item is looked at, which takes a second each."""
N_ADDED, N_DELETED = 10_000, 1_000
N_MAKERS = 5_000

Query = Callable[[], object]


class Shop:
    """Metadata of a shop's items, and filters on it that let a share of them through."""

    def __init__(self, n_items: int) -> None:
        generator = np.random.default_rng(3)
        self._prices = np.round(generator.lognormal(3, 1, n_items), 2)
        self._sorted = np.sort(self._prices)
        self._makers = generator.integers(0, N_MAKERS, n_items)
        self._sold = generator.random(n_items) < 0.5
        self._first_tag = generator.integers(0, 6, n_items)

    def metadata(self, row: int) -> dict[str, Any]:
        """Those of one item."""
        row %= len(self._prices)
        tags = [f"tag {(int(self._first_tag[row]) + step) % 6}" for step in range(3)]
        said = {
            "price": float(self._prices[row]),
            "maker": {"name": _maker(self._makers[row]), "known": row % 3 == 0},
            "tags": tags,
            "year": 1950 + row % 75,
        }
        return {**said, "sold": 2000 + row % 20} if self._sold[row] else said

    def filters(self, share: float, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield kinds of filters in turn, each time with other values."""
        generator = np.random.default_rng(seed)
        for kind in cycle(("number", "text", "list", "exists", "either", "neither")):
            narrow, wide = (self._windows(generator, part) for part in (share, share**0.5))
            half, double = (self._windows(generator, part) for part in (share / 2, share * 2))
            tag = f"tag {generator.integers(0, 6)}"
            (price, maker), (least, most) = wide, (half[0], half[1])
            beyond = [{"price": {"lt": price["gte"]}}, {"price": {"gte": price["lt"]}}]
            beyond += [{"maker.name": {"lt": maker["gte"]}}, {"maker.name": {"gte": maker["lt"]}}]
            wheres: dict[str, dict[str, Any]] = {
                "number": {"price": narrow[0]},
                "text": {"maker.name": narrow[1]},
                "list": {"tags": {"has": tag}, "price": double[0]},
                "exists": {"sold": {"exists": True}, "maker.name": double[1]},
                "either": {"or": [{"price": least}, {"maker.name": most}]},
                "neither": {"not": {"or": beyond}},
            }
            yield kind, wheres[kind]

    def _windows(
        self, generator: np.random.Generator, share: float
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A range of prices and one of makers, each of about a share of the items."""
        start = generator.random(2) * (1 - min(share, 1))
        prices = (start[0] + np.array([0, share])) * (len(self._sorted) - 1)
        low, high = self._sorted[np.minimum(prices, len(self._sorted) - 1).astype(int)]
        first, after = ((start[1] + np.array([0, share])) * N_MAKERS).astype(int)
        makers = {"gte": _maker(first), "lt": _maker(max(after, first + 1))}
        return {"gte": float(low), "lt": float(high)}, makers


def _maker(number: int) -> str:
    return f"maker {number:04d}"


def measure(bundle: Path = BUNDLE, n_items: int = 1_000_000) -> dict[str, Any]:
    """Build and measure; the named ratios, and what lies behind them."""
    faiss.omp_set_num_threads(1)
    directory, shop = WORK / str(n_items), Shop(n_items)
    if not (directory / "truth.npy").exists():
        build(bundle, directory, n_items, shop.metadata)
    queries = np.load(directory / "queries.npy")
    asked = predictives_of(queries, np.load(directory / "query_variances.npy"))
    gallery = FaissGallery(directory)
    found: dict[str, Any] = {
        "n_items": n_items,
        "engine": gallery.index_type,
        "index_bytes_an_item": (directory / COLUMNS_FILE).stat().st_size / n_items,
    }
    for share in SHARES:
        key = f"{100 * share:g}_percent"
        timed = _timed(gallery, asked, shop.filters(share, seed=0), N_TIMED)
        timed |= {"recall_at_10": _recall(gallery, asked, shop.filters(share, seed=1))}
        found |= {f"{name}_{key}": value for name, value in timed.items()}
    found |= _live(gallery, directory, asked, shop)
    found |= _without_indexes(directory, asked, shop)
    ratios = [found[f"over_unfiltered_{100 * share:g}_percent"] for share in SHARES]
    return found | {"filter_first_over_unfiltered": max(ratios)}


def _timed(
    gallery: Gallery,
    asked: list[Predictive],
    filters: Iterator[tuple[str, dict[str, Any]]],
    n: int,
    n_warm: int = 24,
) -> dict[str, Any]:
    """Median milliseconds of ``n`` searches under filters and without, in turn."""
    with_filter: list[float] = []
    without: list[float] = []
    of_kind: dict[str, list[float]] = {}
    plans: dict[str, int] = {}
    for place in range(n_warm + n):
        kind, where = next(filters)
        part, query = parse_filter(where), asked[place % len(asked)]
        plain = _seconds(partial(searched, gallery, query))
        seconds = _seconds(partial(_search, gallery, query, part))
        if place < n_warm:
            continue
        with_filter.append(seconds)
        without.append(plain)
        of_kind.setdefault(kind, []).append(seconds)
        plan = searched(gallery, query, gallery.matching(part)).plan
        plans[plan] = plans.get(plan, 0) + 1
    middle = statistics.median(without)
    return {
        "filtered_ms": 1000 * statistics.median(with_filter),
        "unfiltered_ms": 1000 * middle,
        "over_unfiltered": statistics.median(with_filter) / middle,
        "worst_kind_over_unfiltered": max(map(statistics.median, of_kind.values())) / middle,
        "p95_over_unfiltered": float(np.quantile(with_filter, 0.95)) / middle,
        "plans": plans,
    }


def _seconds(work: Query) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _search(gallery: Gallery, query: Predictive, part: Filter) -> object:
    return searched(gallery, query, gallery.matching(part))


def _recall(
    gallery: Gallery, asked: list[Predictive], filters: Iterator[tuple[str, dict[str, Any]]]
) -> float:
    """Share of the ten nearest items that pass which a search finds, over sixty filters."""
    shares = []
    for query, (_, where) in zip(asked[:60], filters, strict=False):
        allowed = gallery.matching(parse_filter(where))
        rows = allowed.rows()
        nearest = np.argsort(-(gallery.directions(rows) @ query.direction))[:K]
        found = searched(gallery, query, allowed).rows[:K]
        shares.append(overlap(found[None], rows[nearest][None]))
    return float(np.mean(shares))


def _live(
    base: FaissGallery, directory: Path, asked: list[Predictive], shop: Shop
) -> dict[str, Any]:
    """The same with items put into the gallery since it was built, and some taken out."""
    log = directory / "changes.sqlite"
    for old in directory.glob("changes.sqlite*"):
        old.unlink()
    live = LiveGallery(base, ChangesFile(log, "benchmark", base.encoder_fingerprint))
    generator = np.random.default_rng(4)
    near = base.directions(generator.integers(0, base.n_items, N_ADDED))
    picture = Thumbnail(b"a picture" * 60, "image/png")
    upserts = [
        Upsert(
            NewItem(f"new-{row:06d}", None, shop.metadata(row), picture),
            Vector(direction, np.full_like(direction, 1e-3)),
        )
        for row, direction in enumerate(near)
    ]
    gone = base.items(generator.choice(base.n_items, N_DELETED, replace=False))
    live.commit([*upserts, *(Delete(item.id) for item in gone)])
    found: dict[str, Any] = {}
    for share in SHARES:
        timed = _timed(live.snapshot(), asked, shop.filters(share, seed=5), N_TIMED)
        for name in ("filtered_ms", "unfiltered_ms", "over_unfiltered"):
            found[f"live_{name}_{100 * share:g}_percent"] = timed[name]
    live.close()
    return found


def _without_indexes(directory: Path, asked: list[Predictive], shop: Shop) -> dict[str, Any]:
    """A bundle of old, whose fields have no indexes in files: with those learned, and without."""
    bare = directory / "bare"
    shutil.rmtree(bare, ignore_errors=True)
    bare.mkdir()
    for file in directory.iterdir():
        if file.is_file() and file.name not in {FIELDS_FILE, COLUMNS_FILE}:
            (bare / file.name).hardlink_to(file)
    found: dict[str, Any] = {}
    with patch.object(fields, "LEARNED_BYTES", 0):
        filters = shop.filters(0.05, seed=6)
        timed = _timed(FaissGallery(bare), asked, filters, N_LOOKED_AT, n_warm=1)
        found["looked_at_ms"] = timed["filtered_ms"]
        found["looked_at_over_unfiltered"] = timed["over_unfiltered"]
    gallery = FaissGallery(bare)
    for name in ("price", "maker.name"):
        part = parse_filter({name: {"exists": True}})
        found[f"learned_first_s_{name}"] = _seconds(partial(gallery.matching, part))
    timed = _timed(gallery, asked, shop.filters(0.05, seed=7), N_TIMED)
    found["learned_over_unfiltered"] = timed["over_unfiltered"]
    return found


def main() -> None:
    """Print, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE)
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    found = measure(built(options.bundle, "fashion-mnist"), options.items)
    text = json.dumps(found, indent=1, sort_keys=True)
    record_figures("filters", found, globals())
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


if __name__ == "__main__":
    main()
