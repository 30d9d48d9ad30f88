"""The type of a function that yields the features of a data set in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

FeatureBlocks = Callable[[], Iterable[Tensor]]
"""Function that starts a pass over the data: it yields blocks (n, F) of features, in row order."""
