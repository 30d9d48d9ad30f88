"""The batches of an epoch: the rows of images, and the labels for the objective."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from index_builder.configuration.encoder import TrainingConfig
from index_builder.objectives.objective import Sampling

Batch = tuple[Tensor, Tensor]
"""Rows (B,) of training images and their labels (B,); for `views` each row occurs twice."""


def batches_of(
    sampling: Sampling, labels: Tensor, config: TrainingConfig, generator: torch.Generator
) -> tuple[int, Iterator[Batch]]:
    """Return the number of batches in an epoch, and the batches.

    Parameters
    ----------
    sampling : see `Sampling`.
    labels : (N,) int64 codes, from 0 without gaps.
    config : number of labels in a batch, and number of images of each label. If labels are not
        used, the batch size is the product of the two numbers.
    generator : draws the batches.
    """
    if sampling == "pairs":
        both = {"labels_per_batch": config.labels_per_batch * config.images_per_label // 2}
        config = config.model_copy(update={**both, "images_per_label": 2})
    if sampling in {"balanced", "pairs"}:
        n_labels = min(config.labels_per_batch, int(labels.max()) + 1)
        n_batches = max(1, len(labels) // (n_labels * config.images_per_label))
        rows = balanced_batches(labels, config, n_batches, generator)
        return n_batches, ((each, labels[each]) for each in rows)
    size = config.labels_per_batch * config.images_per_label
    if sampling == "views":
        # Each image occurs twice, with different augmentation.
        half = min(size // 2, len(labels))
        rows = (torch.cat([each, each]) for each in _shuffled(len(labels), half, generator))
        return len(labels) // half, ((each, each) for each in rows)
    size = min(size, len(labels))
    rows = _shuffled(len(labels), size, generator)
    return len(labels) // size, ((each, labels[each]) for each in rows)


def _shuffled(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``n`` rows in random order, in batches of ``size``; drop an incomplete last batch."""
    yield from torch.randperm(n, generator=generator)[: n // size * size].view(-1, size)


def balanced_batches(
    labels: Tensor, config: TrainingConfig, n_batches: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the rows of each batch.

    A batch has the same number of images of each of its labels. A label with fewer
    images contributes all of its images. Every image therefore has positives in its batch.
    """
    decks = [
        _dealt(torch.nonzero(labels == label).flatten(), config.images_per_label, generator)
        for label in range(int(labels.max()) + 1)
    ]
    n_labels = min(config.labels_per_batch, len(decks))
    for _ in range(n_batches):
        chosen = torch.randperm(len(decks), generator=generator)[:n_labels].tolist()
        yield torch.cat([next(decks[label]) for label in chosen])


def _dealt(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Draw ``size`` of the ``rows`` again and again, without end.

    If ``rows`` has fewer than ``size`` rows, each draw contains all ``rows``.

    The order is random; no row is repeated before all rows have occurred. A row cannot occur twice
    in a batch, because the row would be its own positive.
    """
    size = min(size, len(rows))
    left = rows[:0]
    while True:
        if len(left) < size:
            shuffled = rows[torch.randperm(len(rows), generator=generator)]
            waiting = torch.isin(shuffled, left)
            left = torch.cat([left, shuffled[~waiting], shuffled[waiting]])
        yield left[:size]
        left = left[size:]
