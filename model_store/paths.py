"""Checks of paths from third parties: each path must be below its directory.

A manifest, an archive or an index may come from a third party. All code uses `inside` to convert
names in such a file to paths.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

_MAX_PART_BYTES = 255
"""Maximum length of a file name on common file systems."""

_UNUSUAL = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")
"""Control characters, and the path separators and drive letters of Windows."""


def relative_name(name: str) -> str:
    """Return ``name`` if it is a normalised relative POSIX path.

    Raises
    ------
    ValueError : ``name`` is absolute, empty, not normalised, contains "..", names no file, or has a
        part that is too long.
    """
    path = PurePosixPath(name)
    try:
        longest = max((len(part.encode()) for part in path.parts), default=0)
    except UnicodeEncodeError:
        longest = 0
    if (
        not 0 < longest <= _MAX_PART_BYTES
        or path.is_absolute()
        or ".." in path.parts
        or path.as_posix() != name  # another name of the same file
        or _UNUSUAL.search(name)
    ):
        raise ValueError(f"{name[:80]!r} is not a path inside its directory")
    return name


def inside(directory: Path, name: str) -> Path:
    """Return the path of the file ``name`` below ``directory``; the file need not exist.

    Raises
    ------
    ValueError : see `relative_name`; or a symbolic link leads out of ``directory``.
    """
    path = directory / relative_name(name)
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"{name[:80]!r} is a link out of its directory")
    return path
