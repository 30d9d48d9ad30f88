"""A source of images, as an indexing wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import Entry


class Source(Protocol):
    """A collection of images."""

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Its images, in an order that is always the same.

        Parameters
        ----------
        scratch : a directory for what must be unpacked before it can be read.
        left_out : notes the files that are not taken.

        Raises
        ------
        DatasetError : the source is not what it should be.
        """
