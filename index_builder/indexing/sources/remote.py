"""A source in a bucket or on the web, read by the readers of what lies on this machine."""

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
"""Opens a file of this machine, whose images lie in certain places."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A manifest, an archive or a table at ``url``: it is copied to this machine and read there.

    Images that a manifest names stay where they are until they are decoded.

    Attributes
    ----------
    root : the folder that a manifest's paths start from; the manifest's own where None.
    open_file : the readers of files.
    """

    url: str
    storage: Storage
    root: Path | str | None
    open_file: OpenFile

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Its entries, as of a file on this machine.

        Raises
        ------
        SourceUnavailable : it cannot be copied.
        DatasetError : it is not what it should be.
        """
        copy = self.storage.copied(self.url, scratch / "copies")
        places = places_in(folder_of(self.url) if self.root is None else self.root)
        yield from self.open_file(copy, places).entries(scratch, left_out)


@dataclass(frozen=True, slots=True)
class BucketFolder:
    """A folder in a bucket at ``url``, of images, or of Parquet files with images in them.

    Images stay there until they are decoded; Parquet files are copied.

    Attributes
    ----------
    labelled : whether first sub-folders are labels.
    """

    url: str
    storage: Storage
    labelled: bool = True

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Its entries, as of a folder on this machine.

        Raises
        ------
        SourceUnavailable : it cannot be listed.
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
