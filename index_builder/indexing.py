"""Embedding a gallery through the exported encoder, and writing it down."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.progress import track
from model_store.encoder import Embeddings, Encoder
from model_store.gallery import IndexSettings, NewItem, Thumbnail, write_faiss_gallery
from model_store.gallery.faiss_gallery import GALLERY_FILES
from model_store.gallery.index_choice import DEFAULT_SETTINGS
from model_store.images import encode_thumbnail

BATCH = 128


def embed_all(encoder: Encoder, images: LabelledImages, description: str) -> Embeddings:
    """Embeddings of all ``images``, without their features, which are many and large."""
    mean = np.empty((len(images), encoder.dim), dtype=np.float32)
    variance = np.empty_like(mean)
    batches = images.batches(encoder.metadata.preprocessing, BATCH)
    for positions, batch in track(batches, description, -(-len(images) // BATCH)):
        embeddings = encoder.encode(batch)
        mean[positions], variance[positions] = embeddings.mean, embeddings.variance
    return Embeddings(mean, variance, np.empty((len(images), 0), dtype=np.float32))


def build_gallery(
    directory: Path,
    encoder: Encoder,
    images: LabelledImages,
    settings: IndexSettings = DEFAULT_SETTINGS,
    *,
    labelled: bool = True,
) -> None:
    """Embed ``images`` and write the gallery's files into ``directory``, labels if ``labelled``."""
    embeddings = embed_all(encoder, images, "embedding the gallery")
    labels = images.labels if labelled else [None] * len(images)
    items = [
        NewItem(images.ids[i], labels[i], {}, _thumbnail(images, i))
        for i in track(range(len(images)), "thumbnails", len(images))
    ]
    partial = directory / "gallery.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    write_faiss_gallery(partial, embeddings, items, encoder.fingerprint, settings)
    for name in GALLERY_FILES:  # of an earlier index, of another kind perhaps
        (directory / name).unlink(missing_ok=True)
    for path in partial.iterdir():
        path.replace(directory / path.name)
    partial.rmdir()


def _thumbnail(images: LabelledImages, position: int) -> Thumbnail:
    return Thumbnail(*encode_thumbnail(images.pixels(position)))
