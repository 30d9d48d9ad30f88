"""A synthetic gallery whose bundle keeps its calibration queries, and changes of it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import ItemQueries
from index_builder.calibration.kept_queries import (
    KeptVectors,
    as_vectors,
    keep,
)
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.recalibrate import calibration_of
from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import current_id
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.decision import Calibration
from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    FaissGallery,
    Gallery,
    LiveGallery,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    write_faiss_gallery,
)
from model_store.retriever import Retriever

DIM, N_FEATURES, N_LABELS, N_EACH = 8, 24, 14, 12
N_NEW = 4
"""Labels that come later."""

PICTURE = Thumbnail(b"-", "image/png")
ENCODER = KeptVectors("e" * 64, DIM, N_FEATURES)
GENERATOR = np.random.default_rng(0)
CENTRES = GENERATOR.standard_normal((N_LABELS + N_NEW, DIM))
CENTRES /= np.linalg.norm(CENTRES, axis=1, keepdims=True)
PROJECTION = GENERATOR.standard_normal((DIM, N_FEATURES))


def drawn(labels: np.ndarray, seed: int, centres: np.ndarray = CENTRES) -> Embeddings:
    generator = np.random.default_rng(seed)
    mean = centres[labels] + 0.28 * generator.standard_normal((len(labels), DIM))
    noise = 0.3 * generator.standard_normal((len(labels), N_FEATURES))
    variance = generator.uniform(0.001, 0.01, mean.shape)
    parts = mean, variance, mean @ PROJECTION + noise
    return Embeddings(*(part.astype(np.float32) for part in parts))


def strangers(n_labels: int, n_each: int, seed: int) -> Embeddings:
    """Queries of labels that no gallery of this world ever has."""
    centres = np.random.default_rng(seed).standard_normal((n_labels, DIM))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return drawn(np.repeat(np.arange(n_labels), n_each), seed, centres)


def images(prefix: str, labels: np.ndarray, embeddings: Embeddings) -> LabelledImages:
    ids = tuple(f"{prefix}-{number:04d}" for number in range(len(labels)))
    names = tuple(f"label {label}" for label in labels.tolist())
    return as_vectors(ids, names, ids, None, embeddings)


OF_ITEMS = np.repeat(np.arange(N_LABELS), N_EACH)
OF_QUERIES = np.repeat(np.arange(N_LABELS), 6)
ITEMS, QUERIES = drawn(OF_ITEMS, 1), drawn(OF_QUERIES, 2)


def calibrated(root: Path, absent_labels: np.ndarray, *, by_items: bool = False) -> Path:
    """Return the folder of bundles of the gallery, calibrated: a copy of what is built once.

    Parameters
    ----------
    absent_labels : labels of absent queries.
    by_items : with items as queries, in place of held-out images.
    """
    built = _built(tuple(absent_labels.tolist()), by_items=by_items)
    return Path(shutil.copytree(built, root / "bundles"))


@cache
def _built(of_absent: tuple[int, ...], *, by_items: bool) -> Path:
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root)
    return calibrated_anew(root, np.array(of_absent, dtype=np.int64), by_items=by_items)


def calibrated_anew(root: Path, absent_labels: np.ndarray, *, by_items: bool = False) -> Path:
    """Build the same by the code as it is now, which a test may have changed."""
    staging = root / "staging"
    staging.mkdir()
    gallery_images = images("item", OF_ITEMS, ITEMS)
    items = [
        NewItem(name, label, {}, PICTURE)
        for name, label in zip(gallery_images.ids, gallery_images.labels, strict=True)
    ]
    write_faiss_gallery(staging, ITEMS, items, ENCODER.fingerprint)
    asked = images("query", OF_QUERIES, QUERIES)
    absent = images("absent", absent_labels, drawn(absent_labels, 8))
    queries = QuerySet(asked, absent, None)
    order = np.random.default_rng(0).permutation(len(OF_ITEMS))
    gallery, some = FaissGallery(staging), gallery_images.at(order)
    config = CalibrationConfig(max_error=0.1)
    asked_of = None
    if by_items:
        queries = QuerySet(asked.at([]), absent, None)
        asked_of = item_queries(some, ITEMS.at(order))
    known = ENCODER, gallery, some, queries, 0
    inputs = GalleryQueries(*known, are_views=False, unseen=not by_items, items=asked_of)
    calibrate_gallery(inputs, config).save(staging)
    keep(staging, inputs)
    (staging / "encoder.onnx").write_bytes(b"no network")
    manifest = Manifest(
        gallery={"name": "g", "description": "", "n_items": gallery.n_items},
        encoder={"fingerprint": ENCODER.fingerprint},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    return publish(staging, manifest, root / "bundles", keep=False).parent


def item_queries(items: LabelledImages, embeddings: Embeddings) -> ItemQueries:
    """Items as queries, of an encoder that has learned nothing from them."""
    return ItemQueries(items, embeddings, embeddings)


def opened(root: Path) -> LiveGallery:
    return open_live(root, root / str(current_id(root)))


def calibration(directory: Path) -> Calibration:
    found = Calibration.load(directory)
    assert found is not None
    return found


def put(labels: np.ndarray, seed: int, prefix: str = "put") -> list[Upsert]:
    embeddings = drawn(labels, seed)
    return [
        Upsert(
            NewItem(f"{prefix}-{number:04d}", f"label {label}", {}, PICTURE),
            Vector(
                embeddings.mean[number], embeddings.variance[number], embeddings.features[number]
            ),
        )
        for number, label in enumerate(labels.tolist())
    ]


def compacted(root: Path, *, calibrated: bool) -> Path:
    live = opened(root)
    directory = root / str(current_id(root))
    calibrate = calibration_of(calibration(directory), {}, must=True) if calibrated else None
    with Compaction(root, read_manifest(directory), live, calibrate=calibrate) as compaction:
        prepared = compaction.prepare()
        compaction.switch()
    live.close()
    return prepared


def asked(gallery: Gallery, fitted: Calibration, queries: Embeddings) -> list[str]:
    """The verdicts on queries."""
    retriever = Retriever(ENCODER, gallery, fitted)
    return [
        retriever.find(predictive, 1).decision.verdict
        for predictive in retriever.predictives(queries)
    ]
