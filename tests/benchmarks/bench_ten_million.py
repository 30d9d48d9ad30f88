"""A gallery of 10⁷ items beside one of 10⁶: built, searched, filtered, written to, compacted.

The items are those of `bench_gallery`: the embeddings of Fashion-MNIST, and copies of them moved by
noise. Each step runs in a process of its own, on one thread, whose memory is watched: what it has
for itself (anonymous), and with it what it has mapped of files, which the system takes back when it
needs it. Times are of the processor, as others may use the machine; those of building by the clock
too, and without what making the items and finding their true neighbours takes.

- *build*: `write_faiss_parts`, which `vouch-build index` and a compaction end with;
- *search, open, filter*: as `bench_gallery` has them;
- *growth*: searches of both sizes in turns, of indexes whose least recall is 0.98;
- *live*: items put one by one and a thousand at once, with a thousand taken out of the gallery;
- *compaction*: the gallery with these changes becomes a new bundle, as by `vouch-build compact`;
- *command*: the same vectors in an .npz, and their items beside them, through `vouch-build index`.

    python -m tests.benchmarks.bench_ten_million [BUNDLE] [--sizes 1000000] [--steps build search]

Needs 60 GB of disk for both sizes and all steps, and the bundle that `vouch-build all --config
fashion-mnist` makes. Writes build/bench-ten-million.json after each step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray

from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import locate
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.gallery import (
    Delete,
    FaissGallery,
    IndexSettings,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
)
from model_store.gallery.files.gallery import GALLERY_FILES
from model_store.gallery.protocol import AT_ONCE
from tests.benchmarks.bench_gallery import (
    BUNDLE,
    K,
    build,
    measure_built,
    medians,
    overlap,
    predictives_of,
    searched,
)
from tests.benchmarks.measured import record_figures
from tests.benchmarks.preconditions import built

WORK = Path("build/bench-ten-million")
REPORT = Path("build/bench-ten-million.json")
SIZES = (1_000_000, 10_000_000)
PICTURE = b"a picture" * 6
"""Small: pictures are the owner's, and what is measured is the gallery."""

MIN_RECALL = 0.98
"""Of the index, which then reads as few lists as find it by its own measure."""

N_QUERIES, N_SLOW = 300, 100
"""Queries, and those of which every sample is searched or a filter asked."""

N_PUT, N_TOGETHER, N_REMOVED = 200, 1_000, 1_000
WATCH_S = 0.2
STEPS = ("build", "search", "live", "compaction", "command")


def measure(bundle: Path, sizes: tuple[int, ...], steps: tuple[str, ...]) -> dict[str, Any]:
    """Every step of each size; the named ratios, and what lies behind them."""
    found: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    for n_items in sizes:
        for step in steps:
            command = [step, str(n_items), str(bundle)]
            found |= {f"{n_items}_{name}": value for name, value in _watched(command).items()}
            _write(found)
    if "search" in steps and sizes == SIZES:
        found |= _watched(["growth", "0", str(bundle)])
        _write(found)
    return found


def _write(found: dict[str, Any]) -> None:
    REPORT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def grown(least: Path, most: Path) -> dict[str, float]:
    """Searches of two galleries in turns: what one of the larger takes over one of the smaller."""
    galleries = [FaissGallery(least), FaissGallery(most)]
    asked = []
    for directory, gallery in zip((least, most), galleries, strict=True):
        queries = np.load(directory / "queries.npy")
        asked.append(predictives_of(queries, np.load(directory / "query_variances.npy")))
        for predictive in asked[-1]:  # warms up
            searched(gallery, predictive)
    seconds = medians(
        len(asked[0]),
        least=lambda at: searched(galleries[0], asked[0][at]),
        most=lambda at: searched(galleries[1], asked[1][at]),
    )
    rows = galleries[1].candidates(np.load(most / "queries.npy"), K).rows
    return {
        "search_growth_1e6_1e7": seconds["most"] / seconds["least"],
        "growth_least_ms": 1000 * seconds["least"],
        "growth_most_ms": 1000 * seconds["most"],
        "recall_at_10_1e7": overlap(rows, np.load(most / "truth.npy")),
    }


def _watched(command: list[str]) -> dict[str, Any]:
    """Run a step in a process of its own; what it says, and the most memory that it had."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    module = [sys.executable, "-m", "tests.benchmarks.bench_ten_million", "--step"]
    with subprocess.Popen(
        [*module, *command], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        own = mapped = 0
        while process.poll() is None:
            memory = _memory(process.pid)
            own = max(own, sum(one.rss - one.shared for one in memory))
            mapped = max(mapped, sum(one.rss for one in memory))
            time.sleep(WATCH_S)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    step = command[0]
    return {
        **json.loads(said),
        f"{step}_peak_own_mib": own / 2**20,
        f"{step}_peak_resident_mib": mapped / 2**20,
    }


def _memory(pid: int) -> list[Any]:
    """What a process and its children have in memory."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [one.memory_info() for one in [process, *process.children(recursive=True)]]
    return []


def _built(bundle: Path, directory: Path, n_items: int) -> dict[str, Any]:
    settings = IndexSettings(min_recall=MIN_RECALL)
    build(bundle, directory, n_items, picture=PICTURE, n_queries=N_QUERIES, settings=settings)
    seconds = dict(
        zip(
            ("build_s", "build_processor_s"),
            np.load(directory / "build_s.npy").tolist(),
            strict=True,
        )
    )
    return {**seconds, "disk_mib": _n_bytes(directory) / 2**20}


def _n_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for name in GALLERY_FILES if (path := directory / name).exists())


def _live(directory: Path) -> dict[str, Any]:
    """Write to a bundle of the gallery, whose files are those that were built."""
    root = _published(directory)
    bundle = locate(root)
    started = time.process_time()
    live = open_live(root, bundle)
    found: dict[str, Any] = {"open_live_s": time.process_time() - started}
    base = live.snapshot()
    generator = np.random.default_rng(5)
    near = base.directions(generator.integers(0, base.n_rows, N_PUT + N_TOGETHER))
    upserts = [
        Upsert(
            NewItem(
                f"new-{number:06d}",
                None,
                {"thousandth": number % 1000},
                Thumbnail(PICTURE, "image/png"),
            ),
            Vector(direction, np.full_like(direction, 1e-3)),
        )
        for number, direction in enumerate(near)
    ]
    found["put_ms"] = 1000 * medians(N_PUT, put=lambda at: live.commit([upserts[at]]))["put"]
    started = time.process_time()
    live.commit(upserts[N_PUT:])
    found["put_thousand_s"] = time.process_time() - started
    gone = base.items(generator.choice(base.n_rows, N_REMOVED, replace=False))
    started = time.process_time()
    live.commit([Delete(item.id) for item in gone])
    found["delete_thousand_s"] = time.process_time() - started
    found |= _searched_live(directory, base, live.snapshot())
    live.close()
    return found


def _searched_live(directory: Path, before: Any, after: Any) -> dict[str, Any]:
    """A search of the gallery as it was built, and in turn of the one that was written to."""
    queries = np.load(directory / "queries.npy")
    asked = predictives_of(queries, np.load(directory / "query_variances.npy"))
    seconds = medians(
        len(asked),
        before=lambda at: searched(before, asked[at]),
        after=lambda at: searched(after, asked[at]),
    )
    return {
        "live_unchanged_ms": 1000 * seconds["before"],
        "live_changed_ms": 1000 * seconds["after"],
    }


def _published(directory: Path) -> Path:
    """A directory of bundles with one bundle: the files of the gallery, by hard links."""
    root, staging = directory / "bundles", directory / "staging"
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for name in GALLERY_FILES:
        if (directory / name).exists():
            (staging / name).hardlink_to(directory / name)
    (staging / "encoder.onnx").write_bytes(b"none")
    gallery = FaissGallery(directory)
    manifest = Manifest(
        gallery={"name": "ten-million", "description": "", "n_items": gallery.n_items},
        encoder={"fingerprint": gallery.encoder_fingerprint},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    publish(staging, manifest, root, keep=False)
    return root


def _compacted(directory: Path) -> dict[str, Any]:
    root = directory / "bundles"
    bundle = locate(root)
    live = open_live(root, bundle)
    wanted = live.snapshot().n_items
    started, computed = time.perf_counter(), time.process_time()
    with Compaction(root, read_manifest(bundle), live) as compaction:
        prepared = compaction.prepare()
        compaction.switch()
    live.close()
    gallery = FaissGallery(prepared)
    assert gallery.n_items == wanted
    found = {
        "compaction_s": time.perf_counter() - started,
        "compaction_processor_s": time.process_time() - computed,
        "compaction_recall_written_down": gallery.index.recall_at_10,
    }
    shutil.rmtree(root)
    return found


def _commanded(directory: Path) -> dict[str, Any]:
    """Index the vectors of a gallery that was built, as their owner would."""
    gallery, work = FaissGallery(directory), directory / "command"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    with (work / "items.jsonl").open("w", encoding="utf-8") as lines:
        for rows in _blocks(gallery.n_items):
            for item in gallery.items(rows):
                known = {"id": item.id, "label": item.label, **item.metadata}
                lines.write(json.dumps(known) + "\n")
    with zipfile.ZipFile(work / "vectors.npz", "w") as archive:
        for name, of in (("mean", gallery.directions), ("variance", gallery.variances)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                shape = gallery.n_items, gallery.dim
                head = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, head)
                for rows in _blocks(gallery.n_items):
                    file.write(np.ascontiguousarray(of(rows)).tobytes())
    given = [work / "vectors.npz", "--items", work / "items.jsonl", "--encoder-name", "made"]
    given += ["--name", "made", "--run", work / "run", "--bundles", work / "bundles"]
    command = [sys.executable, "-m", "index_builder", "index", *map(str, given), "--workers", "1"]
    started, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - started, os.times()
    made = FaissGallery(locate(work / "bundles"))
    assert made.n_items == gallery.n_items
    computed = after.children_user + after.children_system
    found = {
        "command_s": took,
        "command_processor_s": computed - before.children_user - before.children_system,
        "command_recall_written_down": made.index.recall_at_10,
    }
    shutil.rmtree(work)
    return found


def _blocks(n_items: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, n_items, AT_ONCE):
        yield np.arange(start, min(start + AT_ONCE, n_items))


def run_step(step: str, n_items: int, bundle: Path) -> dict[str, Any]:
    faiss.omp_set_num_threads(1)
    if step == "growth":
        return grown(*(WORK / str(size) for size in SIZES))
    directory = WORK / str(n_items)
    match step:
        case "build":
            return _built(bundle, directory, n_items)
        case "search":
            return measure_built(directory, N_SLOW)
        case "live":
            return _live(directory)
        case "compaction":
            return _compacted(directory)
        case _:
            return _commanded(directory)


def main() -> None:
    """Print, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        step, n_items = options.step
        print(json.dumps(run_step(step, int(n_items), options.bundle)))
        return
    found = measure(
        built(options.bundle, "fashion-mnist"), tuple(options.sizes), tuple(options.steps)
    )
    print(json.dumps(found, indent=1, sort_keys=True))
    record_figures("ten-million", found, globals())


if __name__ == "__main__":
    main()
