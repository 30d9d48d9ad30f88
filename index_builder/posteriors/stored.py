"""Any posterior, read back from the file that it was saved to."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from safetensors import safe_open
from torch import Tensor

from index_builder.posteriors.last_layer import LAST_LAYER_FORMAT, LastLayerPosterior
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
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    if kind == LAST_LAYER_FORMAT:
        return LastLayerPosterior(**tensors)
    if kind == VARIANCE_HEAD_FORMAT:
        return VarianceHeadPosterior.from_state(tensors)
    raise ValueError(
        f"{path.name} is not a {LAST_LAYER_FORMAT} file, nor a {VARIANCE_HEAD_FORMAT} one"
    )
