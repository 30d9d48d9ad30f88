"""An uncertainty without a fitted posterior: the norm of an embedding is its concentration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import EmbeddingNormConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.methods.votes import chosen_temperature, votes
from index_builder.posteriors import EmbeddingNormPosterior

TEMPERATURES = np.logspace(-3, 3, 25)
"""Temperatures that validation tries."""


@dataclass(frozen=True)
class EmbeddingNorm(Method):
    """The von Mises-Fisher distribution whose natural parameter is the embedding.

    The method is from Kirchhof et al. 2022. Objectives that compare distributions (el_nivmf, el_vmf
    and similar, mc_info_nce) train the norm to be a concentration. With other objectives, the norm
    is possibly unrelated to the uncertainty.
    """

    settings: EmbeddingNormConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[EmbeddingNormPosterior, Report]:
        """Return the trained last layer.

        The temperature comes from the configuration or from a validation.
        """
        (trained,) = members
        posterior = EmbeddingNormPosterior.of(trained.encoder.last_layer)
        if self.settings.temperature != "validation":
            return posterior.at(self.settings.temperature), _report(self.settings.temperature)
        if not len(splits.validation):
            return posterior, _report(1.0)
        criterion = votes(trained.encoder, posterior, splits, config.seed)
        chosen, search = chosen_temperature(posterior, TEMPERATURES, criterion)
        return posterior.at(chosen), {**_report(chosen), "temperature_search": search}


def _report(temperature: float) -> Report:
    return {"temperature": temperature}
