"""A file beside a log: it stores the number of the log's last change, to detect lost changes.

SQLite reports no error if its journal was lost or damaged, or if the log was deleted. The number is
written after a change is on the disk and before the change is acknowledged. So the number in the
file is never larger than the number of the last stored change. The file is not flushed for each
change. So after a power cut, the number in the file may be smaller than the number of the last
stored change. With the file, a process detects that the log or its journal is lost or damaged.
SQLite itself protects the log against a power cut.
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
"""Ending of the names of temporary files."""


class HighWater:
    """The largest sequence number that a log has acknowledged.

    Parameters
    ----------
    log : path of the log; the number is stored in ``<log>.high``.
    """

    def __init__(self, log: Path) -> None:
        self.path = log.with_name(f"{log.name}{_ENDING}")

    def read(self) -> int:
        """Return the stored number; 0 if there is no file.

        Raises
        ------
        LogDamaged : the file cannot be read, or its content is not a number.
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
        """Create the file if it is missing, so that a later `raise_to` needs no disk space.

        If the process is killed, the file is either missing or complete.

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
        """Write a larger number. Errors are only logged, because the change is already stored."""
        try:
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other processes may write too
                known = file.read()
                if not known.isdigit() or int(known) < sequence:
                    os.pwrite(file.fileno(), _written(sequence), 0)
        except OSError:
            logger.exception("the number of the last change cannot be stored")


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder of logs."""
    with _alone(folder):
        for left in folder.glob(f".*{UNFINISHED}"):
            left.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that create or remove temporary files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # the file system may not lock folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def require_reached(last: int, reached: int) -> None:
    """Raise `LogDamaged` if a log ends with the change ``last`` and ``last`` < ``reached``.

    If other processes can write, the caller must read ``reached`` before it reads the log.
    """
    if last < reached:
        raise LogDamaged(f"it ends with change {last}, though {reached} were acknowledged")


def _written(sequence: int) -> bytes:
    return f"{sequence:0{_DIGITS}d}".encode()
