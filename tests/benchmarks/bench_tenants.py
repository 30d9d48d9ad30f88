"""A thousand galleries of a thousand items on one service, beside one gallery of as many items.

Two services run at the same time, each with one created gallery or many, of random
objects of ten items each, in the encoder's own width. They are asked in turn, block by block, by
vector and by image, without a cache; of the many, another gallery each time. Every gallery has been
asked once before, and is open.

- `tenants_memory`: resident memory of all processes of the one service over that of the other;
- `tenants_p50_vector`, `tenants_p50_image`: median time of a search there over that here;
- `tenants_open_ms`: median time of the first search in a gallery, which opens it;
- `tenants_written_mib`: memory for each of some galleries whose items were all put while they were
  served, and lie in their logs; `tenants_written_open_ms`: the same for these.

    python -m tests.benchmarks.bench_tenants bundles/digits [--galleries 1000] [--items 1000]
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from model_store.bundles.changes import open_live
from model_store.bundles.directory import locate
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.encoder.contract import Embeddings
from model_store.gallery import NewItem, Thumbnail, Upsert, Vector
from model_store.gallery.protocol import Part
from tests.benchmarks.measured import record_figures
from tests.end_to_end.processes import Service

WORK = Path("build/bench-tenants")
N_ROUNDS = 20
N_QUERIES = 25
"""Of each kind in each round."""

AT_ONCE, N_WRITTEN = 1_000, 40

VIEWS, SPREAD = 10, 0.5
"""Items of one object, and how far they lie from it, in its own standard deviation: items without
any neighbour are what no approximate index is fast for."""

PICTURE = Thumbnail(b"\x89PNG of 8 by 8 pixels, about as many bytes as one has" * 2, "image/png")


def main() -> None:
    """Build, measure, print, and write build/bench-tenants.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("like", type=Path, help="a bundle whose encoder the galleries have")
    parser.add_argument("--galleries", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=1_000, help="of each")
    options = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        results = measure(options.like, options.galleries, options.items)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    text = json.dumps(results, indent=1)
    print(text)
    Path("build/bench-tenants.json").write_text(text + "\n", encoding="utf-8")
    record_figures("tenants", results, globals())


def measure(like: Path, n_galleries: int, n_items: int) -> dict[str, Any]:
    """Ratios of memory and time, and what lies behind them."""
    directory = locate(like)
    template = directory, read_manifest(directory)
    began = time.perf_counter()
    one = GalleryFolder(WORK / "one", 1)
    one.create("all", template, items=(n_galleries * n_items, _parts(n_galleries * n_items, like)))
    built_one = time.perf_counter() - began
    many = GalleryFolder(WORK / "many", n_galleries)
    began = time.perf_counter()
    names = [f"tenant-{number:04}" for number in range(n_galleries)]
    for seed, name in enumerate(names):
        many.create(name, template, items=(n_items, _parts(n_items, like, seed)))
    built_many = time.perf_counter() - began
    with (
        tempfile.TemporaryDirectory() as logs,
        _serve(like, one, logs) as first,
        _serve(like, many, logs) as second,
    ):
        dim = int(template[1].encoder["dim"])
        opened = [_timed(second, name, _vector(dim, 0)) for name in names]
        _timed(first, "all", _vector(dim, 0))
        times = _asked(first, second, names, dim)
        memory = [_resident(service) for service in (first, second)]
    return {
        "meta": {"galleries": n_galleries, "items": n_items, "dim": dim},
        "tenants_memory": memory[1] / memory[0],
        "tenants_p50_vector": _ratio(times, "vector"),
        "tenants_p50_image": _ratio(times, "image"),
        "tenants_open_ms": 1000 * statistics.median(opened),
        "tenants_one_mib": memory[0] / 2**20,
        "tenants_many_mib": memory[1] / 2**20,
        **{
            f"tenants_{place}_{kind}_p50_ms": 1000 * statistics.median(each)
            for (place, kind), each in times.items()
        },
        **_written(like, n_items),
        "tenants_one_built_s": built_one,
        "tenants_many_built_s": built_many,
    }


def _written(like: Path, n_items: int) -> dict[str, float]:
    """What galleries take whose items lie in their logs."""
    directory, folder = locate(like), GalleryFolder(WORK / "written", N_WRITTEN)
    names = [f"written-{number}" for number in range(N_WRITTEN)]
    for seed, name in enumerate(names):
        root = folder.root(folder.create(name, (directory, read_manifest(directory))))
        with closing(open_live(root, locate(root))) as live:
            for embeddings, items in _parts(n_items, like, seed):
                pairs = zip(items, embeddings.mean, embeddings.variance, strict=True)
                live.commit([Upsert(item, Vector(mean, spread)) for item, mean, spread in pairs])
    with tempfile.TemporaryDirectory() as logs, _serve(like, folder, logs) as service:
        query = _vector(int(read_manifest(directory).encoder["dim"]), 0)
        _timed(service, names[0], query)
        before = _resident(service)
        opened = [_timed(service, name, query) for name in names[1:]]
        grown = _resident(service) - before
    return {
        "tenants_written_mib": grown / len(opened) / 2**20,
        "tenants_written_open_ms": 1000 * statistics.median(opened),
    }


def _parts(n_items: int, like: Path, seed: int = 0) -> Iterator[Part]:
    """Random items, part by part."""
    manifest: Manifest = read_manifest(locate(like))
    dim, generator = int(manifest.encoder["dim"]), np.random.default_rng(seed)
    for start in range(0, n_items, AT_ONCE):
        n = min(AT_ONCE, n_items - start)
        objects = generator.standard_normal((-(-n // VIEWS), dim))
        mean = np.repeat(objects, VIEWS, axis=0)[:n] + SPREAD * generator.standard_normal((n, dim))
        variance = generator.uniform(0.001, 0.01, (n, dim)).astype(np.float32)
        items = [
            NewItem(f"item-{row:07}", str(row % 100), {"row": row}, PICTURE)
            for row in range(start, start + n)
        ]
        yield Embeddings(mean.astype(np.float32), variance, np.empty((n, 0), np.float32)), items


def _serve(like: Path, folder: GalleryFolder, logs: str) -> Service:
    variables = {
        "VOUCH_GALLERIES": str(folder.path),
        "VOUCH_CACHE_BYTES": "0",
        "VOUCH_RECALIBRATE": "false",
    }
    return Service(like, Path(logs) / f"{folder.path.name}.log", variables)


def _asked(
    first: Service, second: Service, names: list[str], dim: int
) -> dict[tuple[str, str], list[float]]:
    """Seconds of searches, by place and kind."""
    times: dict[tuple[str, str], list[float]] = {
        (place, kind): [] for kind in ("vector", "image") for place in ("one", "many")
    }
    for round_ in range(N_ROUNDS):
        for kind in ("vector", "image"):
            for place, service in (("one", first), ("many", second)):
                for query in range(N_QUERIES):
                    seed = round_ * N_QUERIES + query
                    name = "all" if place == "one" else names[seed * 7919 % len(names)]
                    asked = _vector(dim, seed) if kind == "vector" else _image(seed)
                    times[place, kind].append(_timed(service, name, asked))
    return times


def _vector(dim: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    mean = generator.standard_normal(dim)
    return {"json": {"mean": mean.tolist(), "variance": [0.005] * dim, "limit": 10}}


def _image(seed: int) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"files": {"image": file.getvalue()}, "data": {"limit": "10"}}


def _timed(service: Service, gallery: str, asked: dict[str, Any]) -> float:
    """Seconds that a search takes."""
    path = f"/v1/galleries/{gallery}/search" + ("/vector" if "json" in asked else "")
    began = time.perf_counter()
    answer = service.http.post(path, **asked)
    seconds = time.perf_counter() - began
    answer.raise_for_status()
    if len(answer.json()["results"]) != 10:
        raise RuntimeError(f"{gallery} found {len(answer.json()['results'])} items, wanted 10")
    return seconds


def _resident(service: Service) -> int:
    """Bytes of memory of a service and the processes that it started."""
    process = psutil.Process(service.popen.pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def _ratio(times: dict[tuple[str, str], list[float]], kind: str) -> float:
    return statistics.median(times["many", kind]) / statistics.median(times["one", kind])


if __name__ == "__main__":
    main()
