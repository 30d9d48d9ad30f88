"""No posterior: every embedding has variance zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import DeterministicConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.posteriors import PointPosterior


@dataclass(frozen=True)
class Deterministic(Method):
    """The baseline to which the other methods are compared."""

    settings: DeterministicConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[PointPosterior, Report]:
        """Return the trained last layer unchanged."""
        (trained,) = members
        return PointPosterior.of(trained.encoder.last_layer), {}
