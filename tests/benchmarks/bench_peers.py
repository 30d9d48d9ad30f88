"""Vouch's gallery beside what else finds neighbours: the same vectors and queries, the same recall.

On the 10⁵ items that `bench_gallery` made: hnswlib, usearch, milvus-lite and qdrant-client's local
mode (extra `bench`), each in a process of its own, one after the other. What has a dial is turned
up until recall at 10 reaches `RECALL`. Times are a single client's, by the clock, one thread where
that can be said.

    python -m tests.benchmarks.bench_peers [DIRECTORY]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

N_ITEMS = 100_000
DIRECTORY = Path("build/bench-gallery") / str(N_ITEMS)
RECALL = 0.99
K = 10
N_QUERIES = 500
EFFORTS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
HNSW = {"M": 16, "ef_construction": 200}
"""What hnswlib's and Milvus's documentation begin with."""

Floats = NDArray[np.float32]
Search = Callable[[Floats], list[int]]
Peer = Callable[[Floats, Path], Iterator[tuple[int | None, Search]]]


def vouch(_: Floats, directory: Path) -> Iterator[tuple[int | None, Search]]:
    """The index that Vouch chose, with candidates ranked again by their directions."""
    from model_store.gallery import FaissGallery

    gallery = FaissGallery(directory)
    yield None, lambda query: gallery.candidates(query[None], K).rows[0].tolist()


def vouch_uncertain(_: Floats, directory: Path) -> Iterator[tuple[int | None, Search]]:
    """The same, and how firmly each item holds its place, by a hundred predictive samples."""
    from model_store.gallery import FaissGallery
    from tests.benchmarks.bench_gallery import predictives_of, searched

    gallery = FaissGallery(directory)
    queries, variances = (np.load(directory / f"{n}.npy") for n in ("queries", "query_variances"))
    known = dict(zip(map(bytes, queries), predictives_of(queries, variances), strict=True))

    def search(query: Floats) -> list[int]:
        found = searched(gallery, known[bytes(query)])
        rows: list[int] = found.rows[:K].tolist()
        return rows

    yield None, search


def hnswlib(vectors: Floats, _: Path) -> Iterator[tuple[int | None, Search]]:
    """A graph of float32 vectors."""
    import hnswlib as library

    index = library.Index(space="ip", dim=vectors.shape[1])
    index.init_index(len(vectors), random_seed=0, **HNSW)
    index.add_items(vectors)
    for effort in EFFORTS:
        index.set_ef(effort)
        yield effort, lambda query: index.knn_query(query, K, num_threads=1)[0][0].tolist()


def usearch(vectors: Floats, _: Path) -> Iterator[tuple[int | None, Search]]:
    """A graph of float32 vectors."""
    from usearch.index import Index

    index = Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="f32",
        connectivity=HNSW["M"],
        expansion_add=HNSW["ef_construction"],
    )
    index.add(np.arange(len(vectors)), vectors)
    for effort in EFFORTS:
        index.expansion_search = effort
        yield effort, lambda query: index.search(query, K, threads=1).keys.tolist()


def milvus_lite(vectors: Floats, directory: Path) -> Iterator[tuple[int | None, Search]]:
    """Milvus in a process beside this one, HNSW."""
    from pymilvus import DataType, MilvusClient

    file = directory / "milvus.db"
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    client = MilvusClient(str(file))
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.shape[1])
    parameters = client.prepare_index_params()
    build = {"M": HNSW["M"], "efConstruction": HNSW["ef_construction"]}
    parameters.add_index("vector", index_type="HNSW", metric_type="IP", params=build)
    client.create_collection("items", schema=schema, index_params=parameters)
    for start in range(0, len(vectors), 5_000):
        part = vectors[start : start + 5_000]
        rows = [{"id": start + n, "vector": vector.tolist()} for n, vector in enumerate(part)]
        client.insert("items", rows)
    client.flush("items")
    client.load_collection("items")

    def asked(effort: int) -> Search:
        options = {"metric_type": "IP", "params": {"ef": effort}}
        return lambda query: [
            hit["id"]
            for hit in client.search("items", [query.tolist()], limit=K, search_params=options)[0]
        ]

    for effort in EFFORTS:
        yield effort, asked(effort)


def qdrant_local(vectors: Floats, _: Path) -> Iterator[tuple[int | None, Search]]:
    """The Python client without a server, which looks at every vector.

    In memory: on disk it commits each vector by itself, ten minutes for 10⁵.
    """
    from qdrant_client import QdrantClient
    from qdrant_client.models import Distance, VectorParams

    client = QdrantClient(":memory:")
    space = VectorParams(size=vectors.shape[1], distance=Distance.DOT)
    client.create_collection("items", vectors_config=space)
    client.upload_collection("items", vectors=vectors, ids=range(len(vectors)))
    yield (
        None,
        lambda query: [
            int(point.id) for point in client.query_points("items", query.tolist(), limit=K).points
        ],
    )


PEERS: dict[str, Peer] = {
    "Vouch": vouch,
    "Vouch, with uncertainty": vouch_uncertain,
    "hnswlib": hnswlib,
    "usearch": usearch,
    "milvus-lite": milvus_lite,
    "qdrant-client, local": qdrant_local,
}


def measure(directory: Path = DIRECTORY) -> dict[str, Any]:
    """Each peer in its own process; one that fails says why."""
    found: dict[str, Any] = {}
    for name in PEERS:
        command = [sys.executable, "-m", "tests.benchmarks.bench_peers", str(directory), name]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        lines = (done.stdout.splitlines() or [""], done.stderr.splitlines() or [""])
        found[name] = {"failed": lines[1][-1]} if done.returncode else json.loads(lines[0][-1])
        print(f"{name}: {found[name]}", file=sys.stderr)
    return found


def _measure_one(name: str, directory: Path) -> dict[str, Any]:
    vectors = np.load(directory / "directions.npy")
    queries = np.load(directory / "queries.npy")[:N_QUERIES]
    truth = np.load(directory / "truth.npy")[:N_QUERIES]
    before, started = _resident(), time.perf_counter()
    for effort, search in PEERS[name](vectors, directory):
        built = time.perf_counter() - started
        shares = [
            len(set(search(query)) & set(nearest)) / K
            for query, nearest in zip(queries, truth.tolist(), strict=True)
        ]
        recall = float(np.mean(shares))
        if effort is None or recall >= RECALL:
            break
        started = time.perf_counter() - built  # turning the dial is no building
    seconds = []
    for query in queries:
        started = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - started)
    return {
        "effort": effort,
        "recall_at_10": recall,
        "search_ms": 1000 * statistics.median(seconds),
        "ready_s": built,
        "resident_mib": (_resident() - before) / 2**20,
    }


def _resident() -> int:
    """Bytes of this process and of those it started."""
    process = psutil.Process()
    return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)])


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    print(json.dumps(_measure_one(sys.argv[2], place) if len(sys.argv) > 2 else measure(place)))
