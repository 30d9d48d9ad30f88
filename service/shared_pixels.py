"""Pixels in memory that two processes share."""

from __future__ import annotations

import os
import tempfile
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedPixels:
    """A file in memory, shared by two processes, with one picture or batch at a time.

    A picture is larger than a socket's buffer, so a socket would transfer it in many small steps.
    The other process can overwrite the file at any time. Therefore `read` copies the pixels.

    Parameters
    ----------
    number : file descriptor from another process; if None, a new file is created.
    """

    def __init__(self, number: int | None = None) -> None:
        self._file = _in_memory() if number is None else FileIO(number, "r+")

    def fileno(self) -> int:
        """Return the file descriptor; another process can inherit it."""
        return self._file.fileno()

    def write(self, pixels: NDArray[Any]) -> None:
        """Replace the content of the file with ``pixels``."""
        n_written = os.pwrite(self.fileno(), np.ascontiguousarray(pixels).data, 0)
        if n_written < pixels.nbytes:
            raise OSError(f"Only {n_written} of {pixels.nbytes} bytes of pixels were written.")

    def read(self, shape: tuple[int, ...], dtype: str = "|u1") -> NDArray[Any]:
        """Return a copy of the pixels, with the shape and type that the reader expects.

        Raises
        ------
        EOFError : the file has fewer bytes than the pixels need.
        """
        pixels = np.empty(shape, dtype)
        n_read = os.preadv(self.fileno(), [pixels.data], 0)
        if n_read < pixels.nbytes:
            raise EOFError(f"The file has only {n_read} of {pixels.nbytes} bytes of pixels.")
        return pixels

    def close(self) -> None:
        """Close the file; the file is deleted after both processes have closed it."""
        self._file.close()


def _in_memory() -> FileIO:
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("pixels"), "r+")
    with tempfile.TemporaryFile() as file:  # not on Linux
        return FileIO(os.dup(file.fileno()), "r+")
