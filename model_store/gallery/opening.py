"""Opening the gallery of a bundle, whichever engine holds it."""

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
"""Every file that a bundle's gallery may have."""


def open_gallery(directory: Path, access: MilvusAccess = NO_ACCESS) -> Gallery:
    """The gallery that was written into ``directory``, or described there.

    Raises
    ------
    BundleMismatch : its parts do not belong together.
    GalleryUnavailable : Milvus holds it, and does not answer.
    """
    if (directory / MILVUS_FILE).exists():
        return MilvusGallery(directory, access)
    return FaissGallery(directory)


def index_description(directory: Path) -> Mapping[str, Any]:
    """The index of the gallery in ``directory``, as a manifest tells of it."""
    if (directory / MILVUS_FILE).exists():
        described = MilvusDescription.load(directory)
        return {"engine": "milvus", "collection": described.collection, **described.index}
    return asdict(IndexReport.load(directory))
