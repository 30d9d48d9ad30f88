"""The type of a pass over a data set's features, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

FeatureBlocks = Callable[[], Iterable[Tensor]]


"""Called once for each pass over the data: blocks (n, F) of the features, in row order."""
