"""Choose a temperature by votes on validation images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import Array
from index_builder.datasets import LabelledImages, Splits
from index_builder.posteriors.laplace.fit import PriorSearch
from index_builder.posteriors.laplace.held_out import Criterion, Predicts, vote_log_likelihood
from index_builder.progress import console

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
