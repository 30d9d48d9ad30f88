"""Opens the gallery of a bundle with the engine that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_store.gallery.files.gallery import GALLERY_FILES, FaissGallery
from model_store.gallery.index.build import IndexReport
from model_store.gallery.milvus.collection import (
    MILVUS_FILE,
    NO_ACCESS,
    MilvusAccess,
    MilvusDescription,
)
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.protocol import Gallery

ANY_GALLERY_FILES = (*GALLERY_FILES, MILVUS_FILE)
"""Names of all files that a bundle's gallery can have."""


def open_gallery(directory: Path, access: MilvusAccess = NO_ACCESS) -> Gallery:
    """Open the gallery that ``directory`` contains or describes.

    Raises
    ------
    BundleMismatch : the files contradict each other, or the Milvus collection is wrong.
    GalleryUnavailable : the gallery is in Milvus, which does not answer.
    """
    if (directory / MILVUS_FILE).exists():
        return MilvusGallery(directory, access)
    return FaissGallery(directory)


def index_description(directory: Path) -> Mapping[str, Any]:
    """Describe the index of the gallery in ``directory`` for the manifest."""
    if (directory / MILVUS_FILE).exists():
        described = MilvusDescription.load(directory)
        return {"engine": "milvus", "collection": described.collection, **described.index}
    return asdict(IndexReport.load(directory))
