"""Bisection: the first step at which a condition holds.

It uses Python's `bisect`: importing SciPy's root finders takes 0.1 s, and the service needs few
roots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def first_where(holds: Callable[[int], bool], start: int, stop: int) -> int:
    """Return the first step, ``start`` to ``stop``, at which a monotone ``holds`` is true.

    Returns
    -------
    ``stop`` if it holds at no earlier step.
    """
    return start + bisect_left(range(start, stop), True, key=holds)
