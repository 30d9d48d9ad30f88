"""Any posterior, read back from the file that it was saved to."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from safetensors import safe_open
from torch import Tensor

from index_builder.posteriors.last_layer import LastLayerPosterior
from index_builder.posteriors.variance_head import VARIANCE_HEAD_FORMAT, VarianceHeadPosterior


class Posterior(Protocol):
    """Whatever turns features into a distribution of the embedding."""

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""

    def save(self, path: Path) -> None:
        """Write it as safetensors."""


def load_posterior(path: Path) -> Posterior:
    """Read a posterior of either kind.

    Raises
    ------
    ValueError : the file is of neither.
    """
    with safe_open(path, framework="pt") as file:
        kind = dict(file.metadata() or {}).get("format")
    if kind == VARIANCE_HEAD_FORMAT:
        return VarianceHeadPosterior.load(path)
    return LastLayerPosterior.load(path)
