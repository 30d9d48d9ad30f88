"""The interface `Method`: each function of the class does one step of a build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from index_builder.arrays import Array
from index_builder.configuration.encoder import EncoderConfig
from index_builder.datasets import Splits
from index_builder.vectors.encoder import LinearEncoder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from index_builder.networks import MetricEncoder
    from index_builder.objectives import Objective
    from index_builder.posteriors.stored import Posterior, ProbabilisticEncoder

Report = dict[str, Any]
"""A description of the fit of a posterior, as JSON values."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained encoder.

    Attributes
    ----------
    network : the encoder in evaluation mode; None if all of it has a closed form.
    learned : trained tensors of the objective, see `Objective.learned`.
    linear : the encoder as arrays of NumPy.
    """

    network: MetricEncoder | None
    learned: Mapping[str, Array]
    linear: LinearEncoder

    @property
    def encoder(self) -> MetricEncoder:
        """The encoder as a network.

        Raises
        ------
        ValueError : the encoder has a closed form and no network.
        """
        if self.network is None:
            raise ValueError("This method needs a network; the encoder has a closed form.")
        return self.network


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
        from index_builder.objectives import objective_of  # noqa: PLC0415 - it needs torch

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
        from index_builder.posteriors.stored import ProbabilisticEncoder  # noqa: PLC0415 - torch

        (encoder,) = encoders
        return ProbabilisticEncoder(encoder, posterior)
