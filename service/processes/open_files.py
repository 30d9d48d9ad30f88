"""The files that this process may have open, and the galleries that they are enough for."""

from __future__ import annotations

import resource
from contextlib import suppress

FILES_OF_A_GALLERY = 16
"""Items and log of one that was written to, as several threads read them."""

FILES_OF_EVERYTHING_ELSE = 256

FEWEST = 8
"""Galleries that are held open however few files may be."""

_MOST = 2**20


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum allowed; the default of a shell is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def galleries_at_once(wanted: int, connections: int) -> int:
    """Return how many galleries can be open at once, beside so many connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    left = soft - min(connections, soft * 3 // 4) - FILES_OF_EVERYTHING_ELSE
    return min(wanted, max(FEWEST, left // FILES_OF_A_GALLERY))
