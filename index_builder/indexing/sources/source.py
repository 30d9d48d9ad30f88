"""The protocol of a source of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import Entry


class Source(Protocol):
    """A collection of images."""

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the images in a fixed order.

        Parameters
        ----------
        scratch : directory for unpacked files.
        left_out : collects the names of files that are left out.

        Raises
        ------
        DatasetError : the source is invalid.
        """
