"""The type of a pass over a data set's features, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

FeatureBlocks = Callable[[], Iterable[Tensor]]
"""Function that starts a pass over the data: it yields blocks (n, F) of features, in row order."""
