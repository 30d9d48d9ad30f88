"""The sources of a collection: a folder, a manifest, an archive, and what data sets come as.

Each gives its entries in an order of its own that is always the same, and looks at no pixel.

::

    folder      a folder of images
    manifest    CSV, JSONL or Parquet
    archive     a tar of images, maybe with what webdataset lays beside them
    coco        annotations of COCO, an item a box
    parquet_images  Parquet with the images in it
    vectors     tables of vectors, in place of images
    places      the folder that images must lie in
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from index_builder.datasets.other_formats import OtherFormats
from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.archive import ARCHIVE_SUFFIXES, Archive
from index_builder.indexing.sources.coco import CocoAnnotations
from index_builder.indexing.sources.folder import Folder
from index_builder.indexing.sources.manifest import MANIFEST_SUFFIXES, ImageManifest
from index_builder.indexing.sources.parquet_images import (
    ParquetImages,
    holds_images,
    parquet_files,
)
from index_builder.indexing.sources.vectors import VectorSource
from index_builder.vectors.table import VECTOR_SUFFIXES, holds_vectors, open_table
from model_store.errors import DatasetError

COCO_SUFFIX, PARQUET_SUFFIX = ".json", ".parquet"

__all__ = ["Source", "VectorSource", "name_of", "open_source", "open_vectors"]


class Source(Protocol):
    """A collection of images."""

    def entries(self, scratch: Path, others: OtherFormats, /) -> Iterator[Entry]:
        """Its images, in an order that is always the same.

        Parameters
        ----------
        scratch : a directory for what must be unpacked before it can be read.
        others : is shown the names of the files that are not taken.

        Raises
        ------
        DatasetError : the source is not what it should be.
        """


def open_source(path: Path, root: Path | None = None, *, labelled: bool = True) -> Source:
    """The source at ``path``, by what it is called and what is in it.

    A folder of images, or of Parquet files with images; a manifest in CSV, JSONL or Parquet;
    annotations of COCO; a tar of images.

    Parameters
    ----------
    root : the folder that a manifest's paths start from and must not leave; its own where None.
    labelled : whether the first sub-folder of an image, or of its name in an archive, is its label;
        of a manifest, whether labels stay labels, and do not become metadata.

    Raises
    ------
    DatasetError : nothing there, or of no known kind.
    """
    path = path.expanduser().absolute()
    if path.is_dir() and (files := parquet_files(path)) and holds_images(files[0]):
        return ParquetImages(files, labelled=labelled)
    if path.is_dir():
        return Folder(path, root or path, labelled=labelled)
    if not path.is_file():
        raise DatasetError(
            f"{path} is not there. Name a folder of images, a manifest or an archive."
        )
    if _ends_with(path, ARCHIVE_SUFFIXES):
        return Archive(path, labelled=labelled)
    if _ends_with(path, (COCO_SUFFIX,)):
        return CocoAnnotations(path, root or path.parent, labelled=labelled)
    if _ends_with(path, (PARQUET_SUFFIX,)) and holds_images(path):
        return ParquetImages([path], labelled=labelled)
    if _ends_with(path, MANIFEST_SUFFIXES) and not holds_vectors(path):
        return ImageManifest(path, root or path.parent, labelled=labelled)
    if _ends_with(path, VECTOR_SUFFIXES):
        raise DatasetError(
            f"{path.name} holds vectors, not images. Say what made them: --encoder-name NAME, in "
            "place of --encoder."
        )
    wanted = ", ".join([*MANIFEST_SUFFIXES, COCO_SUFFIX, *ARCHIVE_SUFFIXES])
    raise DatasetError(f"{path.name} is neither a folder nor one of {wanted}.")


def open_vectors(path: Path, items: Path | None, *, labelled: bool = True) -> VectorSource:
    """The vectors in the table at ``path``.

    Parameters
    ----------
    items : a manifest of what is known of each row; None where that stands in the table.
    labelled : as for `open_source`.

    Raises
    ------
    DatasetError : it is no table of vectors.
    """
    path = path.expanduser().absolute()
    return VectorSource(open_table(path), items, labelled=labelled)


def name_of(path: Path) -> str:
    """Return the default name of a source's gallery."""
    name = path.expanduser().absolute().name
    suffixes = (*ARCHIVE_SUFFIXES, *MANIFEST_SUFFIXES, COCO_SUFFIX, *VECTOR_SUFFIXES)
    return next((name[: -len(one)] for one in suffixes if name.lower().endswith(one)), name)


def _ends_with(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes)
