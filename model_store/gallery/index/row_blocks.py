"""Reads directions in blocks, so that only the current block of a file is in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 65_536
"""Number of rows in a block. FAISS itself adds rows in blocks of this size. So the index is the
same, whether all rows are added in one call or block by block."""


def row_blocks(rows: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Yield the rows (N, D) of an array, or of a whole mapped file, in blocks.

    Each block of a file is a separate memory map, which is closed after use. If one map covered the
    whole file, all rows read so far would count as memory of the process.
    """
    for start in range(0, len(rows), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(rows))
        if isinstance(rows, np.memmap) and rows.filename is not None:
            at = rows.offset + start * rows.strides[0]
            shape = stop - start, *rows.shape[1:]
            yield np.memmap(rows.filename, np.float32, "r", at, shape)
        else:
            yield rows[start:stop]


def rows_at(rows: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the rows at ``places`` (ascending), with only one block in memory."""
    found = np.empty((len(places), *rows.shape[1:]), rows.dtype)
    start = 0
    for block in row_blocks(rows):
        first, after = np.searchsorted(places, (start, start + len(block)))
        found[first:after] = block[places[first:after] - start]
        start += len(block)
    return found
