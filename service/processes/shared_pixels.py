"""Pixels that pass from one process to another."""

from __future__ import annotations

import os
import tempfile
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedPixels:
    """A file in memory that two processes share, for one picture, or batch, at a time.

    A picture does not fit into a socket's buffer: through one, the two processes would take turns
    at its pieces. What lies here the other process may overwrite at any time, so that it is copied
    before anything is done with it.

    Parameters
    ----------
    number : of the file, where another process has opened it; None to open one.
    """

    def __init__(self, number: int | None = None) -> None:
        self._file = _in_memory() if number is None else FileIO(number, "r+")

    def fileno(self) -> int:
        """The file's number, to hand to another process."""
        return self._file.fileno()

    def write(self, pixels: NDArray[Any]) -> None:
        """Lay ``pixels`` down, in place of what lies there."""
        n_written = os.pwrite(self.fileno(), np.ascontiguousarray(pixels).data, 0)
        if n_written < pixels.nbytes:
            raise OSError(f"{n_written} of {pixels.nbytes} bytes of pixels could be written")

    def read(self, shape: tuple[int, ...], dtype: str = "|u1") -> NDArray[Any]:
        """A copy of what lies here, of a shape and a type that the reader expects.

        Raises
        ------
        EOFError : less lies here.
        """
        pixels = np.empty(shape, dtype)
        n_read = os.preadv(self.fileno(), [pixels.data], 0)
        if n_read < pixels.nbytes:
            raise EOFError(f"{n_read} of {pixels.nbytes} bytes of pixels are there")
        return pixels

    def close(self) -> None:
        """Close the file; it is deleted once both processes have closed it."""
        self._file.close()


def _in_memory() -> FileIO:
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("pixels"), "r+")
    with tempfile.TemporaryFile() as file:  # not on Linux
        return FileIO(os.dup(file.fileno()), "r+")
