"""A source in a bucket or on the web. Its files are copied, and read as local files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.bucket_folder import BucketFiles
from index_builder.indexing.sources.folder import Folder
from index_builder.indexing.sources.parquet_images import ParquetImages, holds_images
from index_builder.indexing.sources.places import Places, places_in
from index_builder.indexing.sources.source import Source
from index_builder.storage import Storage
from index_builder.storage.urls import folder_of

OpenFile = Callable[[Path, Places], Source]
"""A function that opens a local file as a source; `Places` finds the images of the file."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A manifest, archive or table at ``url``. The file is first copied to this machine.

    The images in a manifest are downloaded just before they are decoded.

    Attributes
    ----------
    root : folder that paths in a manifest are relative to; by default, the manifest's own folder.
    open_file : function that opens the local copy.
    """

    url: str
    storage: Storage
    root: Path | str | None
    open_file: OpenFile

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the entries of the local copy.

        Raises
        ------
        SourceUnavailable : the file cannot be copied.
        DatasetError : the file is invalid.
        """
        copy = self.storage.copied(self.url, scratch / "copies")
        places = places_in(folder_of(self.url) if self.root is None else self.root)
        yield from self.open_file(copy, places).entries(scratch, left_out)


@dataclass(frozen=True, slots=True)
class BucketFolder:
    """A bucket folder at ``url`` with images, or with Parquet files that contain images.

    Images are downloaded just before they are decoded. Parquet files are first copied to this
    machine.

    Attributes
    ----------
    labelled : whether the first sub-folder in an image's path is the label.
    """

    url: str
    storage: Storage
    labelled: bool = True

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the same entries as for a local folder.

        Raises
        ------
        SourceUnavailable : the folder cannot be listed.
        """
        with closing(BucketFiles(self.storage, self.url)) as files:
            tables = files.parquet()
            if tables and holds_images(first := self._copied(tables[0], scratch)):
                rest = [self._copied(one, scratch) for one in tables[1:]]
                source: Source = ParquetImages([first, *rest], labelled=self.labelled)
            else:
                source = Folder(files.files, labelled=self.labelled)
            yield from source.entries(scratch, left_out)

    def _copied(self, url: str, scratch: Path) -> Path:
        return self.storage.copied(url, scratch / "copies")
