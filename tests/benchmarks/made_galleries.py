"""What the benchmarks of galleries in databases have in common: items, filters, and the timing."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.gallery import FaissGallery, Gallery, NewItem, Thumbnail, parse_filter
from model_store.gallery.protocol import AT_ONCE, Part
from model_store.search import N_CANDIDATES

DIM, N_CENTRES, N_LOCAL = 128, 5_000, 16
PICTURE = Thumbnail(b"a picture" * 10, "image/png")
FILTERS: Mapping[str, Mapping[str, Any]] = {
    "label": {"label": "label-3"},
    "range": {"thousandth": {"lt": 50}},
    "wide": {"thousandth": {"gte": 500}},
}

Floats = NDArray[np.float32]
Timed = Callable[[Floats], object]


class Made:
    """Items that are made, the same each time, part by part."""

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items
        generator = np.random.default_rng(0)
        self._centres = generator.standard_normal((N_CENTRES, DIM), dtype=np.float32)
        self._spaces = generator.standard_normal((64, N_LOCAL, DIM), dtype=np.float32) / 4

    def vectors(self, seed: int, n: int) -> Floats:
        """Unit vectors (n, D)."""
        generator = np.random.default_rng([1, seed])
        of = generator.integers(0, N_CENTRES, n)
        local = generator.standard_normal((n, N_LOCAL), dtype=np.float32)
        vectors = self._centres[of] + np.einsum("nl,nld->nd", local, self._spaces[of % 64])
        vectors += 0.1 * generator.standard_normal(vectors.shape, dtype=np.float32)
        return cast("Floats", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def parts(self) -> Iterator[Part]:
        """All items, in the order of their ids."""
        for start in range(0, self.n_items, AT_ONCE):
            rows = range(start, min(start + AT_ONCE, self.n_items))
            mean = self.vectors(start, len(rows))
            variance = np.full_like(mean, 0.001)
            items = [
                NewItem(
                    f"{row:08d}",
                    f"label-{row % 20}",
                    {"thousandth": row % 1000, "maker": f"maker {row % 97}", "sold": row % 2 == 0},
                    PICTURE,
                )
                for row in rows
            ]
            yield Embeddings(mean, variance, mean[:, :0]), items


def with_items(gallery: Gallery) -> Timed:
    """A search for all candidates, with what an answer needs of their items."""

    def ask(query: Floats) -> object:
        rows = gallery.candidates(query, N_CANDIDATES).rows[0]
        return gallery.items(rows), gallery.directions(rows)

    return ask


def in_turns(searches: Mapping[str, Timed], queries: Floats) -> tuple[dict[str, float], ...]:
    """Ask each query of each search, in an order that goes round.

    The first query warms up and is not timed.

    Returns
    -------
    Median in milliseconds, and searches a second, by search.
    """
    for search in searches.values():
        search(queries[:1])
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    names = deque(searches)
    for at in range(1, len(queries)):
        names.rotate(1)
        for name in names:
            started = time.perf_counter()
            searches[name](queries[at : at + 1])
            seconds[name].append(time.perf_counter() - started)
    medians = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    return medians, {name: len(values) / sum(values) for name, values in seconds.items()}


def filtered(of: str, gallery: Gallery, files: FaissGallery, queries: Floats) -> dict[str, float]:
    """Median in milliseconds of a search with each filter, in a database ``of`` and in files."""
    found = {}
    for name, where in FILTERS.items():
        for engine, one in ((of, gallery), ("files", files)):
            seconds = []
            for query in queries[:30]:
                started = time.perf_counter()
                allowed = one.matching(parse_filter(where))
                one.candidates(query[None], N_CANDIDATES, allowed)
                seconds.append(time.perf_counter() - started)
            found[f"{engine}_filter_{name}_ms"] = 1000 * statistics.median(seconds)
    return found
