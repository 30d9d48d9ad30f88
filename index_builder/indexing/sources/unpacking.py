"""Files of the run that are written from compressed ones, in the space that the disk has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import DatasetError
from model_store.files import PARTIAL, FreeSpace


@contextmanager
def unpacking(target: Path, source: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends bytes to a file, which becomes ``target`` at the end.

    A tenth of the disk's free space stays free. After any error nothing is left.

    Parameters
    ----------
    source : name of the compressed file, for messages.

    Raises
    ------
    DatasetError : the disk has too little space.
    """
    partial = target.with_name(f"{target.name}{PARTIAL}")
    partial.unlink(missing_ok=True)  # of a run that was killed
    space = FreeSpace(target.parent)
    n_written = 0
    file = partial.open("wb", buffering=0)

    def write(content: bytes) -> None:
        nonlocal n_written
        if not space.has(len(content)):
            raise DatasetError(
                f"{source} is not unpacked: it holds more than {n_written / 2**20:,.1f} MiB, and "
                f"the disk of the run directory has space for {space.n_bytes / 2**20:,.1f} MiB. "
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
