"""Recognises errors of a full disk or of a missing permission, whichever library raises them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OF_THE_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
_OF_SQLITE = {3, 8, 10, 13, 14}  # PERM, READONLY, IOERR, FULL, CANTOPEN; a client has no sqlite3
_TEXT = re.compile(
    "|".join(map(re.escape, map(os.strerror, sorted(_OF_THE_SYSTEM - {errno.EPERM}))))
    + r"|\d+ requested and \d+ written"
)
"""Texts in errors that have no code: of safetensors and FAISS, and, in the last line, of NumPy."""

_ADVICE = (
    "Free disk space or grant permission, or name another directory; then run the same command "
    "again."
)


def disk_error(error: BaseException) -> str | None:
    """Return a sentence about a full disk or a missing permission, with advice.

    Returns
    -------
    None for an error with another cause.
    """
    where = ""
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno not in _OF_THE_SYSTEM:
            return None
        where, why = f"{error.filename}: " if error.filename else "", os.strerror(error.errno)
    elif hasattr(error, "sqlite_errorcode"):
        if error.sqlite_errorcode & 0xFF not in _OF_SQLITE:
            return None
        why = str(error)
    else:
        of_a_writer = isinstance(error, OSError | RuntimeError) or _is_of_safetensors(error)
        found = _TEXT.search(str(error)) if of_a_writer else None
        if found is None:
            return None
        why = found[0]
    return f"{where}{why}. {_ADVICE}"


def _is_of_safetensors(error: BaseException) -> bool:
    return type(error).__name__ == "SafetensorError"  # without an import of safetensors


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of a file to the error of a full disk, because the system names no file."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            error.filename = error.filename or str(path)
        raise
