"""The time that a large gallery takes to be compacted and calibrated again, half of it replaced.

``python -m tests.benchmarks.bench_refit`` makes a synthetic gallery, calibrates it, deletes half of
its items and puts as many others, and compacts it with a calibration from what the bundle keeps.
Seconds are of the processor and of the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.kept_queries import KeptVectors, as_vectors, keep
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.recalibrate import calibration_of
from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.decision import Calibration
from model_store.decision.calibration import staleness
from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    Delete,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    open_gallery,
    write_faiss_gallery,
)
from model_store.machine import one_blas_thread

DIM, N_FEATURES, N_LABELS, N_QUERIES, N_SAMPLE = 64, 128, 500, 2_000, 4_000
SPREAD = 0.11
_PICTURE = Thumbnail(b"-", "image/png")


class World:
    """Labels that lie at random, and what an encoder makes of their images."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        centres = self._generator.standard_normal((N_LABELS, DIM))
        self._centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)
        self._projection = self._generator.standard_normal((DIM, N_FEATURES))

    def drawn(self, n: int) -> tuple[NDArray[np.int64], Embeddings]:
        """Labels (n,) and embeddings of n images."""
        labels = self._generator.integers(N_LABELS, size=n)
        mean = self._centres[labels] + SPREAD * self._generator.standard_normal((n, DIM))
        variance = np.full_like(mean, 1e-3)
        features = mean @ self._projection + 0.3 * self._generator.standard_normal((n, N_FEATURES))
        parts = (part.astype(np.float32) for part in (mean, variance, features))
        return labels, Embeddings(*parts)


def images(prefix: str, labels: NDArray[np.int64], embeddings: Embeddings) -> LabelledImages:
    """The same as images of vectors."""
    ids = tuple(f"{prefix}-{number:07d}" for number in range(len(labels)))
    names = tuple(f"label {label}" for label in labels.tolist())
    return as_vectors(ids, names, ids, None, embeddings)


def run(n_items: int, seed: int, root: Path) -> dict[str, object]:
    """Build, change, compact; what it took."""
    world, encoder = World(seed), KeptVectors("e" * 64, DIM, N_FEATURES)
    labels, embeddings = world.drawn(n_items)
    first = images("item", labels, embeddings)
    staging = root / "staging"
    staging.mkdir()
    items = [
        NewItem(name, label, {}, _PICTURE)
        for name, label in zip(first.ids, first.labels, strict=True)
    ]
    write_faiss_gallery(staging, embeddings, items, encoder.fingerprint)
    gallery, asked = open_gallery(staging), images("query", *world.drawn(N_QUERIES))
    some = first.at(np.random.default_rng(seed).permutation(n_items)[:N_SAMPLE])
    queries = QuerySet(asked, asked.at([]), None)
    inputs = GalleryQueries(encoder, gallery, some, queries, seed, are_views=False, unseen=True)
    before = calibrate_gallery(inputs, CalibrationConfig())
    before.save(staging)
    keep(staging, inputs)
    (staging / "encoder.onnx").write_bytes(b"no network")
    description = {"name": "g", "description": "", "n_items": n_items}
    manifest = Manifest(description, {"fingerprint": encoder.fingerprint}, None, None, (), {})
    directory = publish(staging, manifest, root / "bundles", keep=False)
    live = open_live(root / "bundles", directory)
    labels, put = world.drawn(n_items // 2)
    rows = zip(labels.tolist(), put.mean, put.variance, put.features, strict=True)
    live.commit(
        [
            *(
                Upsert(NewItem(f"put-{n:07d}", f"label {label}", {}, _PICTURE), Vector(*vector))
                for n, (label, *vector) in enumerate(rows)
            ),
            *(Delete(name) for name in first.ids[::2]),
        ]
    )
    made = read_manifest(directory)
    wall, processor = time.perf_counter(), time.process_time()
    with Compaction(
        root / "bundles", made, live, calibrate=calibration_of(before, {})
    ) as compaction:
        prepared = compaction.prepare()
        compaction.switch()
    seconds = time.perf_counter() - wall, time.process_time() - processor
    after = Calibration.load(prepared)
    assert after is not None
    live.close()
    return {
        "n_items": n_items,
        "wall_s": seconds[0],
        "processor_s": seconds[1],
        "stale": staleness(after, open_gallery(prepared)),
        "n_leave_one_out": after.report["n_leave_one_out"],
    }


def main() -> None:
    """Print a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory() as place, one_blas_thread():
        print(json.dumps(run(options.items, options.seed, Path(place))))


if __name__ == "__main__":
    main()
