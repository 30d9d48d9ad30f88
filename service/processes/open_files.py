"""How many files this process may have open, and how many galleries that is enough for."""

from __future__ import annotations

import resource
from contextlib import suppress

FILES_OF_A_GALLERY = 32
"""Arrays, items and the log of one, as several threads read them."""

_MOST = 2**20


def raise_file_limit() -> None:
    """Let this process open as many files as it may: what a shell allows at first is few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def galleries_at_once(wanted: int) -> int:
    """Return how many galleries can be open at once: connections take the larger part of files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // 4 // FILES_OF_A_GALLERY))
