"""The limit of open files, and the number of open galleries that this limit allows."""

from __future__ import annotations

import resource
from contextlib import suppress

FILES_OF_A_GALLERY = 16
"""An open gallery with changes needs this number of open files, because several threads read its
items and its log."""

FILES_OF_EVERYTHING_ELSE = 256

FEWEST = 8
"""Minimum number of open galleries, even if the limit of open files is lower."""

_MOST = 2**20


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit; the default is often low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def galleries_at_once(wanted: int, connections: int) -> int:
    """Return the number of galleries that can be open at the same time, at most ``wanted``.

    The ``connections`` and all other files also count against the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    left = soft - min(connections, soft * 3 // 4) - FILES_OF_EVERYTHING_ELSE
    return min(wanted, max(FEWEST, left // FILES_OF_A_GALLERY))
