"""A gallery of 10⁶ items in a real Milvus, beside the same gallery in files and beside pymilvus.

Items are made: unit vectors of 128 dimensions around 5,000 centres, each moved within a space of 16
dimensions of its centre's own, with variances, labels, and metadata of three fields. The same parts
are written to Milvus and to files, with the same kind of index; each is tuned by itself for the
recall that is asked for. Timed by the clock, as Milvus computes in a process of its own: queries
that were not asked before, one at a time, each by all in an order that goes round.

- *vouch*: `MilvusGallery.candidates`, 200 candidates ranked in float64, with their items;
- *pymilvus*: the client's `search` for 200 with the same parameters, and the fields that Vouch's
  answer consists of: id, label, metadata, direction. All are read, for pymilvus reads metadata and
  directions from what the server sent only when they are used;
- *pymilvus, without directions*: the same for id, label and metadata, which nothing can be ranked
  or decided by;
- *files*: `FaissGallery.candidates` and the items;
- *filtered*: `matching` and `candidates` for filters that let 5 % and 50 % through.

    python -m tests.benchmarks.bench_milvus [--items 1000000] [--kind ivf_sq8] [--uri http://…]

It starts the server that PyPI's `milvus` carries, unless one is named. Writes
build/bench-milvus.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    FaissGallery,
    Gallery,
    IndexSettings,
    MilvusAccess,
    MilvusGallery,
    NewItem,
    Thumbnail,
    parse_filter,
    write_faiss_parts,
    write_milvus_parts,
)
from model_store.gallery.index.plan import IndexKind
from model_store.gallery.protocol import AT_ONCE, Part
from model_store.search import N_CANDIDATES
from tests.benchmarks.bench_gallery import overlap
from tests.benchmarks.measured import record_figures
from tests.support.milvus import MilvusServer

WORK = Path("build/bench-milvus")
REPORT = Path("build/bench-milvus.json")
DIM, N_CENTRES, N_LOCAL = 128, 5_000, 16
N_TIMED = 450
K = 10
PICTURE = Thumbnail(b"a picture" * 10, "image/png")
FILTERS: dict[str, dict[str, Any]] = {
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


@contextmanager
def a_server(uri: str | None) -> Iterator[tuple[str, psutil.Process | None]]:
    """The address of a Milvus, and its process where it was started here."""
    if uri is not None:
        yield uri, None
        return
    shutil.rmtree(WORK / "server", ignore_errors=True)
    (WORK / "server").mkdir(parents=True)
    server = MilvusServer((WORK / "server").resolve())
    server.start()
    try:
        yield server.uri, psutil.Process(server.pid)
    finally:
        server.kill()


def measure(n_items: int, kind: IndexKind, uri: str | None) -> dict[str, Any]:
    """Write, search, and compare."""
    made, settings = Made(n_items), IndexSettings(kind, min_recall=0.95)
    queries = made.vectors(2**31, N_TIMED + K + 100)
    found: dict[str, Any] = {"n_items": n_items, "kind": kind}
    with a_server(uri) as (address, process):
        folders = WORK / "in-milvus", WORK / "in-files"
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        access = MilvusAccess(timeout_s=60)
        started = time.perf_counter()
        described = write_milvus_parts(
            folders[0], (n_items, DIM), made.parts, "benchmark", address, settings, access
        )
        found["milvus_build_s"] = time.perf_counter() - started
        _write(found)
        started = time.perf_counter()
        write_faiss_parts(folders[1], (n_items, DIM), made.parts(), "benchmark", settings)
        found["files_build_s"] = time.perf_counter() - started
        gallery, files = MilvusGallery(folders[0], access), FaissGallery(folders[1])
        found["index"] = dict(described.index)
        found |= _recall(gallery, files, made, queries[-100:])
        found |= _timed(gallery, files, queries)
        found |= _filtered(gallery, files, queries)
        if process is not None:
            found["milvus_resident_mib"] = process.memory_info().rss / 2**20
        gallery.close()
    return found


def _recall(
    gallery: MilvusGallery, files: FaissGallery, made: Made, queries: Floats
) -> dict[str, float]:
    directions = np.concatenate([part.mean for part, _ in made.parts()])
    _, truth = faiss.knn(queries, directions, K, faiss.METRIC_INNER_PRODUCT)
    return {
        f"{name}_recall_at_10": overlap(one.candidates(queries, K).rows, truth)
        for name, one in (("milvus", gallery), ("files", files))
    }


def _with_items(gallery: Gallery) -> Timed:
    def ask(query: Floats) -> object:
        rows = gallery.candidates(query, N_CANDIDATES).rows[0]
        return gallery.items(rows), gallery.directions(rows)

    return ask


def _by_pymilvus(gallery: MilvusGallery, fields: list[str]) -> Timed:
    client, name = gallery.collection.client, gallery.collection.name
    parameters = {"metric_type": "IP", "params": dict(gallery.described.index["parameters"])}

    def ask(query: Floats) -> object:
        [hits] = client.search(
            name,
            data=list(query),
            anns_field="direction",
            limit=N_CANDIDATES,
            output_fields=fields,
            search_params=parameters,
            consistency_level="Eventually",
        )
        return [hit["entity"] for hit in hits]

    return ask


def _timed(gallery: MilvusGallery, files: FaissGallery, queries: Floats) -> dict[str, float]:
    searches = {
        "vouch": _with_items(gallery),
        "pymilvus": _by_pymilvus(gallery, ["id", "label", "metadata", "direction"]),
        "pymilvus_without_directions": _by_pymilvus(gallery, ["id", "label", "metadata"]),
        "files": _with_items(files),
    }
    for search in searches.values():
        search(queries[:1])
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    names = deque(searches)
    for at in range(1, N_TIMED + 1):
        names.rotate(1)
        for name in names:
            started = time.perf_counter()
            searches[name](queries[at : at + 1])
            seconds[name].append(time.perf_counter() - started)
    found = {f"{name}_ms": 1000 * statistics.median(values) for name, values in seconds.items()}
    rates = {name: len(values) / sum(values) for name, values in seconds.items()}
    return found | {
        "milvus_over_pymilvus": rates["vouch"] / rates["pymilvus"],
        "milvus_over_pymilvus_without_directions": (
            rates["vouch"] / rates["pymilvus_without_directions"]
        ),
        "milvus_over_pymilvus_medians": found["pymilvus_ms"] / found["vouch_ms"],
        "milvus_over_files": rates["vouch"] / rates["files"],
    }


def _filtered(gallery: MilvusGallery, files: FaissGallery, queries: Floats) -> dict[str, float]:
    found = {}
    for name, where in FILTERS.items():
        for of, one in (("milvus", gallery), ("files", files)):
            seconds = []
            for at in range(30):
                started = time.perf_counter()
                allowed = one.matching(parse_filter(where))
                one.candidates(queries[at : at + 1], N_CANDIDATES, allowed)
                seconds.append(time.perf_counter() - started)
            found[f"{of}_filter_{name}_ms"] = 1000 * statistics.median(seconds)
    return found


def main() -> None:
    """Print, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--kind", default="ivf_sq8")
    parser.add_argument("--uri")
    options = parser.parse_args()
    _write(measure(options.items, cast("IndexKind", options.kind), options.uri))


def _write(found: dict[str, Any]) -> None:
    REPORT.parent.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1, sort_keys=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    record_figures("milvus", found, globals())


if __name__ == "__main__":
    main()
