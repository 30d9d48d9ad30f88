"""Writes an uncompressed copy of a compressed file, if the disk has enough space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import DatasetError
from model_store.files import PARTIAL, FreeSpace


@contextmanager
def unpacking(target: Path, source: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends bytes to a temporary file, which finally becomes ``target``.

    A tenth of the disk's free space is not used. After an error, the temporary file is removed.

    Parameters
    ----------
    source : name of the compressed file, for messages.

    Raises
    ------
    DatasetError : the disk has too little space.
    """
    partial = target.with_name(f"{target.name}{PARTIAL}")
    partial.unlink(missing_ok=True)  # left by a killed run
    space = FreeSpace(target.parent)
    n_written = 0
    file = partial.open("wb", buffering=0)

    def write(content: bytes) -> None:
        nonlocal n_written
        if not space.has(len(content)):
            raise DatasetError(
                f"{source} needs more than {n_written / 2**20:,.1f} MiB unpacked, but the disk of "
                f"the run directory has space for {space.n_bytes / 2**20:,.1f} MiB. "
                "Name another disk with --run, or unpack the file and name its folder."
            )
        n_written += len(content)
        file.write(content)

    try:
        with file:
            yield write
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
