"""Read a posterior of any kind from its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from safetensors import safe_open
from torch import Tensor

from index_builder.posteriors.baselines import (
    DROPOUT_FORMAT,
    ENSEMBLE_FORMAT,
    POINT_FORMAT,
    DropoutPosterior,
    EnsemblePosterior,
    PointPosterior,
)
from index_builder.posteriors.embedding_norm import (
    EMBEDDING_NORM_FORMAT,
    EmbeddingNormPosterior,
)
from index_builder.posteriors.laplace.kronecker_posterior import (
    KRONECKER_FORMAT,
    KroneckerPosterior,
)
from index_builder.posteriors.laplace.last_layer import LAST_LAYER_FORMAT, LastLayerPosterior
from index_builder.posteriors.learned_variances import (
    PREDICTED_LOSS_FORMAT,
    UNCERTAINTY_MODULE_FORMAT,
    VARIANCE_HEAD_FORMAT,
    PredictedLossPosterior,
    UncertaintyModulePosterior,
    VarianceHeadPosterior,
)


class Posterior(Protocol):
    """A map from features to the mean and variance of the embedding."""

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""

    def save(self, path: Path) -> None:
        """Write it as safetensors."""


FORMATS: Mapping[str, Callable[[dict[str, Tensor]], Posterior]] = {
    LAST_LAYER_FORMAT: lambda tensors: LastLayerPosterior(**tensors),
    KRONECKER_FORMAT: lambda tensors: KroneckerPosterior(**tensors),
    VARIANCE_HEAD_FORMAT: VarianceHeadPosterior.from_state,
    UNCERTAINTY_MODULE_FORMAT: UncertaintyModulePosterior.from_state,
    EMBEDDING_NORM_FORMAT: lambda tensors: EmbeddingNormPosterior(**tensors),
    PREDICTED_LOSS_FORMAT: PredictedLossPosterior.from_state,
    POINT_FORMAT: lambda tensors: PointPosterior(**tensors),
    DROPOUT_FORMAT: lambda tensors: DropoutPosterior(**tensors),
    ENSEMBLE_FORMAT: lambda tensors: EnsemblePosterior(**tensors),
}
"""Constructors of posteriors from tensors, by the format name in the file."""


def load_posterior(path: Path) -> Posterior:
    """Read a posterior of any kind.

    Raises
    ------
    ValueError : the file has none of the known formats.
    """
    with safe_open(path, framework="pt") as file:
        kind = dict(file.metadata() or {}).get("format", "")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    if kind not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"{path.name} is a file of format {kind!r}, wanted one of {known}")
    return FORMATS[kind](tensors)
