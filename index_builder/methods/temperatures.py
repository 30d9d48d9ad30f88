"""Methods with a temperature, and the choice of a temperature by votes on validation images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from index_builder.arrays import Array
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import EmbeddingNormConfig, LossPredictionConfig
from index_builder.datasets import LabelledImages, Splits
from index_builder.networks.features import all_features
from index_builder.objectives import LossPrediction
from index_builder.posteriors.baselines import EmbeddingNormPosterior
from index_builder.posteriors.laplace.held_out import Criterion, Predicts, vote_log_likelihood
from index_builder.posteriors.laplace.prior import PriorSearch
from index_builder.posteriors.learned_variances import LossHead, PredictedLossPosterior
from index_builder.progress import console
from index_builder.training.loop import train

from .method import Method, Report, Trained

N_VALIDATION = 1_000
"""Maximum number of validation images. More images hardly change the chosen temperature."""

N_VOTERS = 10_000
"""Maximum number of training images that are searched for neighbours."""


class Tempered(Predicts, Protocol):
    """A posterior with a temperature."""

    def at(self, temperature: float) -> Predicts:
        """Return a copy with a different temperature."""


def chosen_temperature(
    posterior: Tempered, candidates: NDArray[np.float64], criterion: Criterion
) -> tuple[float, dict[str, Any]]:
    """Return the temperature with the largest criterion, and a report of the search as JSON values.

    If several temperatures are equally good, the largest of them is chosen. If the best temperature
    is the smallest or largest candidate, the result is 1; see `PriorSearch.is_identified`.
    """
    ordered = sorted(candidates.tolist(), reverse=True)
    values = [criterion(posterior.at(candidate)) for candidate in ordered]
    search = PriorSearch(tuple(ordered), tuple(values))
    say_if_unidentified(search)
    report = {"candidates": ordered, "criterion": values, "is_identified": search.is_identified}
    return search.temperature, report


def say_if_unidentified(search: PriorSearch) -> None:
    """Print a warning if the validation does not identify a temperature."""
    if not search.is_identified:
        console.print(
            "[yellow]The temperature is 1, because validation does not identify it: the best "
            f"candidate, {search.best:g}, is at an end of the range from "
            f"{min(search.candidates):g} to {max(search.candidates):g}.[/]"
        )


def votes(
    features: Callable[[LabelledImages], Array], posterior: Predicts, splits: Splits, seed: int
) -> Criterion:
    """Return a criterion that scores how well sampled votes predict the validation labels.

    Parameters
    ----------
    features : function that returns the features (N, F) of images.
    """
    shuffle = np.random.default_rng(seed)
    names = sorted({*splits.training.labels, *splits.validation.labels})

    def drawn(images: LabelledImages, most: int) -> tuple[Array, NDArray[np.int64]]:
        chosen = images.at(shuffle.permutation(len(images))[:most])
        codes = np.array([names.index(label) for label in chosen.labels], dtype=np.int64)
        return features(chosen), codes

    queries, query_labels = drawn(splits.validation, N_VALIDATION)
    found, found_labels = drawn(splits.training, N_VOTERS)
    return vote_log_likelihood(
        posterior,
        queries,
        query_labels,
        found,
        found_labels,
        seed,
    )


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
            value = self.settings.temperature
            return posterior.at(value), {"temperature": value}
        if not len(splits.validation):
            return posterior, {"temperature": 1.0}
        criterion = votes(partial(all_features, trained.encoder), posterior, splits, config.seed)
        value, search = chosen_temperature(posterior, TEMPERATURES, criterion)
        return posterior.at(value), {"temperature": value, "temperature_search": search}


@dataclass(frozen=True)
class LossPredictor(Method):
    """A head that predicts the order of the losses (Kirchhof et al. 2024), or their values."""

    settings: LossPredictionConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[PredictedLossPosterior, Report]:
        """Train a head on the features of the training images, and choose its temperature."""
        encoder, images = members[0].encoder, splits.training
        generator = torch.Generator().manual_seed(config.seed)
        encoder.requires_grad_(requires_grad=False)
        features = all_features(encoder, images)
        head = LossHead(encoder.trunk.n_features, generator)
        training = {"epochs": self.settings.epochs, "learning_rate": self.settings.learning_rate}
        history = train(
            encoder,
            LossPrediction(head, self.settings.form),
            lambda rows: features[rows],
            torch.from_numpy(images.label_codes()),
            config.training.model_copy(update=training),
            generator,
        )
        posterior = PredictedLossPosterior(encoder.last_layer, head)
        report: Report = {"epochs": [asdict(epoch) for epoch in history]}
        if self.settings.temperature != "validation" or not len(splits.validation):
            asked = self.settings.temperature
            value = 1.0 if asked == "validation" else asked
            return posterior.at(value), {**report, "temperature": value}
        criterion = votes(partial(all_features, encoder), posterior, splits, config.seed)
        value, search = chosen_temperature(posterior, TEMPERATURES, criterion)
        return posterior.at(value), {**report, "temperature": value, "temperature_search": search}


CLASSES = {"embedding_norm": EmbeddingNorm, "loss_prediction": LossPredictor}
"""The methods of this module by name."""
