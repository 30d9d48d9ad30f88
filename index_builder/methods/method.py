"""The interface of methods: what one does at each step of a build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from index_builder.configuration.encoder import EncoderConfig
from index_builder.datasets import Splits
from index_builder.networks import MetricEncoder
from index_builder.objectives import Objective, objective_of
from index_builder.posteriors import Posterior, ProbabilisticEncoder

Report = dict[str, Any]
"""The origin of a posterior, as JSON values."""


@dataclass(frozen=True, slots=True)
class Trained:
    """An encoder as training left it.

    Attributes
    ----------
    encoder : in evaluation mode.
    learned : what its objective learned beside it, see `Objective.learned`.
    """

    encoder: MetricEncoder
    learned: Mapping[str, Tensor]


class Method(ABC):
    """A way to learn uncertainty: `posterior.method` of a configuration.

    What is implemented here is that of most methods: one encoder, trained with the objective that
    the configuration names, whose posterior acts on the features of one pass.
    """

    def members(self, config: EncoderConfig) -> list[EncoderConfig]:
        """Return the configuration of each encoder that is trained; one, as a rule."""
        return [config]

    def objective(
        self,
        config: EncoderConfig,
        encoder: MetricEncoder,
        labels: Tensor,
        generator: torch.Generator,
    ) -> Objective:
        """Return the loss that ``encoder`` is trained with.

        Parameters
        ----------
        labels : (N,) int64 codes of the training images, from 0 without gaps.
        generator : draws what the objective draws.
        """
        dim = encoder.last_layer.out_features
        return objective_of(config.training, dim, int(labels.max()) + 1, generator)

    @abstractmethod
    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[Posterior, Report]:
        """Return the posterior of the encoders that were trained, and how it came about.

        Raises
        ------
        CalibrationError : no prior precision can be chosen.
        """

    def assemble(
        self, encoders: Sequence[MetricEncoder], posterior: Posterior
    ) -> ProbabilisticEncoder:
        """Return what is exported: images to mean, variance and features."""
        (encoder,) = encoders
        return ProbabilisticEncoder(encoder, posterior)
