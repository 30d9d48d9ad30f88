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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np
import psutil

from model_store.gallery import FaissGallery, IndexSettings, write_faiss_parts
from model_store.gallery.index.plan import IndexKind
from model_store.gallery.milvus.collection import MilvusAccess
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.writer import write_to_milvus
from model_store.gallery.protocol import GalleryContent
from model_store.search import N_CANDIDATES
from tests.benchmarks.bench_gallery import overlap
from tests.benchmarks.made_galleries import DIM, Floats, Made, Timed, filtered, in_turns, with_items
from tests.benchmarks.measured import record_figures
from tests.support.milvus import MilvusServer

WORK = Path("build/bench-milvus")
REPORT = Path("build/bench-milvus.json")
N_TIMED = 450
K = 10


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
        shape = n_items, DIM
        new = GalleryContent(folders[0], shape, made.parts, "benchmark", settings, owner="")
        described = write_to_milvus(new, address, access)
        found["milvus_build_s"] = time.perf_counter() - started
        _write(found)
        started = time.perf_counter()
        write_faiss_parts(folders[1], shape, made.parts(), "benchmark", settings)
        found["files_build_s"] = time.perf_counter() - started
        gallery, files = MilvusGallery(folders[0], access), FaissGallery(folders[1])
        found["index"] = dict(described.index)
        found |= _recall(gallery, files, made, queries[-100:])
        found |= _timed(gallery, files, queries)
        found |= filtered("milvus", gallery, files, queries)
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
        "vouch": with_items(gallery),
        "pymilvus": _by_pymilvus(gallery, ["id", "label", "metadata", "direction"]),
        "pymilvus_without_directions": _by_pymilvus(gallery, ["id", "label", "metadata"]),
        "files": with_items(files),
    }
    medians, rates = in_turns(searches, queries[: N_TIMED + 1])
    return {f"{name}_ms": value for name, value in medians.items()} | {
        "milvus_over_pymilvus": rates["vouch"] / rates["pymilvus"],
        "milvus_over_pymilvus_without_directions": (
            rates["vouch"] / rates["pymilvus_without_directions"]
        ),
        "milvus_over_pymilvus_medians": medians["pymilvus"] / medians["vouch"],
        "milvus_over_files": rates["vouch"] / rates["files"],
    }


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
