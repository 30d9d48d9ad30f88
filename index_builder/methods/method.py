"""The interface `Method`: each function of the class does one step of a build."""

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
"""A description of the fit of a posterior, as JSON values."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained encoder.

    Attributes
    ----------
    encoder : the encoder in evaluation mode.
    learned : trained tensors of the objective, see `Objective.learned`.
    """

    encoder: MetricEncoder
    learned: Mapping[str, Tensor]


class Method(ABC):
    """A method to learn uncertainty; the setting `posterior.method` selects the method.

    The defaults suit most methods: one encoder is trained with the configured objective, and the
    posterior needs one pass of an image through the trunk.
    """

    def members(self, config: EncoderConfig) -> list[EncoderConfig]:
        """Return the configuration of each encoder to train; by default one encoder."""
        return [config]

    def objective(
        self,
        config: EncoderConfig,
        encoder: MetricEncoder,
        labels: Tensor,
        generator: torch.Generator,
    ) -> Objective:
        """Return the training objective of ``encoder``.

        Parameters
        ----------
        labels : (N,) int64 codes of the training images, from 0 without gaps.
        generator : draws the initial parameters and, during training, the random samples.
        """
        dim = encoder.last_layer.out_features
        return objective_of(config.training, dim, int(labels.max()) + 1, generator)

    @abstractmethod
    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[Posterior, Report]:
        """Return the posterior of the trained encoders, and a description of the fit.

        Raises
        ------
        CalibrationError : no prior precision can be chosen.
        """

    def assemble(
        self, encoders: Sequence[MetricEncoder], posterior: Posterior
    ) -> ProbabilisticEncoder:
        """Return the module for export, which maps images to mean, variance and features."""
        (encoder,) = encoders
        return ProbabilisticEncoder(encoder, posterior)
