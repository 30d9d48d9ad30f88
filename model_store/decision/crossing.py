"""Bisection: the first step at which a condition holds.

The module uses Python's `bisect`, because an import of SciPy's root finders takes 0.1 s.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def first_where(holds: Callable[[int], bool], start: int, stop: int) -> int:
    """Return the first step from ``start`` for which the monotone condition ``holds`` is true.

    Returns
    -------
    The first such step. The result is ``stop`` if the condition is false for every step below
    ``stop``.
    """
    return start + bisect_left(range(start, stop), True, key=holds)
