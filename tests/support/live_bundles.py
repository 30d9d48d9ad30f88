"""Small directories of bundles that are written to and compacted; no encoder runs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import current_id
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    IndexSettings,
    LiveGallery,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    write_faiss_gallery,
)
from model_store.gallery.index.plan import DEFAULT_SETTINGS
from tests.laws.gallery_laws import random_embeddings
from tests.support.fakes import FakeEncoder

DIM = 6


def published(
    folder: Path,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    settings: IndexSettings = DEFAULT_SETTINGS,
) -> Path:
    """A directory of bundles with a gallery of ``items``."""
    staging, encoder = folder / "staging", FakeEncoder(embeddings.mean.shape[1])
    staging.mkdir()
    (staging / "encoder.onnx").write_bytes(b"an encoder")
    write_faiss_gallery(staging, embeddings, items, encoder.fingerprint, settings)
    manifest = Manifest(
        gallery={"name": "g", "description": "", "n_items": len(items)},
        encoder={"fingerprint": encoder.fingerprint},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    return publish(staging, manifest, folder / "bundles").parent


def opened(root: Path, bundle_id: str | None = None) -> LiveGallery:
    """The gallery of a bundle, by default the current one, with its changes."""
    return open_live(root, root / (bundle_id or str(current_id(root))))


def compaction(root: Path, live: LiveGallery) -> Compaction:
    """A compaction of the current bundle."""
    return Compaction(root, read_manifest(root / str(current_id(root))), live)


def upsert(item_id: str, seed: int, label: str | None = None, dim: int = DIM) -> Upsert:
    """An item that is to be there."""
    embeddings = random_embeddings(1, dim, seed)
    item = NewItem(item_id, label, {"seed": seed}, Thumbnail(item_id.encode(), "image/png"))
    return Upsert(item, Vector(embeddings.mean[0], embeddings.variance[0]))


def peak_of_compaction(root: Path) -> int:
    """Compact the current bundle, and return the bytes that Python held at most while preparing."""
    with compaction(root, opened(root)) as one:
        tracemalloc.start()
        try:
            one.prepare()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        one.switch()
    return peak
