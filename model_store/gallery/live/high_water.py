"""A mark beside a log of how far it has come, by which a log that has lost its end is known.

SQLite makes the best of what it finds: of a lost or damaged journal it says nothing, nor of a log
that was deleted. The number is written after the change is on the disk and before it is
acknowledged, in place, so that it is never ahead of the stored changes. It is not flushed for each
change: it guards against lost and damaged files, not against a power cut, of which SQLite takes
care; that may take it back, and never forward.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from model_store.errors import LogDamaged
from model_store.files import PARTIAL, replacing

logger = logging.getLogger(__name__)

_DIGITS = 20
_ENDING = ".high"
UNFINISHED = f"{_ENDING}{PARTIAL}"
"""Ending of the name of a number that is being made."""


class HighWater:
    """The latest sequence number that a log is known to have had.

    Parameters
    ----------
    log : the path of the log; the number lies in ``<log>.high``.
    """

    def __init__(self, log: Path) -> None:
        self.path = log.with_name(f"{log.name}{_ENDING}")

    def read(self) -> int:
        """Return the number; 0 where there is none.

        Raises
        ------
        LogDamaged : it is no number.
        """
        try:
            content = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise LogDamaged(f"{self.path.name} cannot be read ({error.strerror})") from error
        if len(content) != _DIGITS or not content.isdigit():
            raise LogDamaged(f"{self.path.name} holds no number")
        return int(content)

    def make(self, sequence: int) -> None:
        """Write the number where there is none, so that raising it needs no room later.

        A kill at any moment leaves no number, or a whole one.

        Raises
        ------
        OSError
        """
        if not self.path.exists():
            with _alone(self.path.parent):
                if not self.path.exists():
                    with replacing(self.path) as staged:
                        staged.write_bytes(_written(sequence))

    def raise_to(self, sequence: int) -> None:
        """Write a greater number; a change that is on the disk is not refused where it fails."""
        try:
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # writers of other processes
                known = file.read()
                if not known.isdigit() or int(known) < sequence:
                    os.pwrite(file.fileno(), _written(sequence), 0)
        except OSError:
            logger.exception("how far the changes have come cannot be written down")


def remove_unfinished(folder: Path) -> None:
    """Remove numbers in a folder of logs that killed processes were writing."""
    with _alone(folder):
        for left in folder.glob(f".*{UNFINISHED}"):
            left.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the one process that makes numbers in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks of folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def require_reached(last: int, reached: int) -> None:
    """Raise `LogDamaged` where a log ends with ``last``, before the number beside it.

    Unless no other process can write, the number has to be read before the log is.
    """
    if last < reached:
        raise LogDamaged(f"it ends with change {last}, though {reached} were acknowledged")


def _written(sequence: int) -> bytes:
    return f"{sequence:0{_DIGITS}d}".encode()
