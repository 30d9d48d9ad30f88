"""The step from which on a condition holds.

Python's bisection serves for it: SciPy's root finders take 0.1 s of a processor to import, in a
service that asks for few roots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def first_where(holds: Callable[[int], bool], start: int, stop: int) -> int:
    """Return the first step of ``start`` to ``stop`` from which on ``holds`` is true.

    Returns
    -------
    ``stop`` where it holds at none before.
    """
    return start + bisect_left(range(start, stop), True, key=holds)
