"""Batches with several images of each label."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from index_builder.configuration.encoder import TrainingConfig


def balanced_batches(
    labels: Tensor, config: TrainingConfig, n_batches: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Rows of batches that hold the same number of images of each of some labels.

    A label with fewer images than that gives all it has.
    Every batch then has positives for each of its images, however many labels there are.
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
    """Hands of ``size`` rows, or all there are, without end.

    In random order, each row once before any comes again, and none twice in one hand: an image
    would be its own positive.
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
