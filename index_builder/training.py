"""Training of an encoder and whatever its objective learns beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from index_builder.configuration import TrainingConfig
from index_builder.datasets import LabelledImages
from index_builder.features import all_features
from index_builder.networks import MetricEncoder
from index_builder.objectives import Objective
from index_builder.progress import console, track

FeatureSource = Callable[[Tensor], Tensor]
"""Features (B, F), with their graph, of the training images of some rows (B,) int64."""

WARM_UP_STEPS = 100
"""AdamW's first steps are as large as its later ones, and the first gradients mean nothing."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training images came to."""

    loss: float
    learning_rate: float
    seconds: float


def train(
    encoder: MetricEncoder,
    objective: Objective,
    features_of: FeatureSource,
    labels: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
) -> list[Epoch]:
    """Train in place: AdamW, warm-up, and a cosine schedule over ``config.epochs``.

    Parameters
    ----------
    encoder : its parameters that want a gradient are trained, and so are those of ``objective``.
    objective : what is minimised.
    features_of : see `feature_source`.
    labels : (N,) int64 codes, from 0 without gaps.
    generator : decides the batches.
    """
    n_batches = max(1, len(labels) // (config.labels_per_batch * config.images_per_label))
    learned = [p for p in nn.ModuleList([encoder, objective]).parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        learned, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    n_steps = config.epochs * n_batches
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, n_steps))
    encoder.train()
    history = []
    for epoch in range(config.epochs):
        started, total, rate = time.perf_counter(), 0.0, float(schedule.get_last_lr()[0])
        batches = balanced_batches(labels, config, n_batches, generator)
        for rows in track(batches, f"epoch {epoch + 1}/{config.epochs}", n_batches):
            features = encoder.dropout(features_of(rows))
            optimizer.zero_grad()
            loss = objective(features, labels[rows], encoder.last_layer)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item()
        history.append(Epoch(total / n_batches, rate, time.perf_counter() - started))
        console.print(
            f"epoch {epoch + 1}/{config.epochs}: loss {history[-1].loss:.4f}, "
            f"{history[-1].seconds:.0f} s"
        )
    encoder.eval()
    return history


def feature_source(
    encoder: MetricEncoder,
    images: LabelledImages,
    config: TrainingConfig,
    generator: torch.Generator,
) -> FeatureSource:
    """Features of training images by row: computed once where the trunk is frozen, else each time.

    Parameters
    ----------
    generator : decides the augmentation.
    """
    if encoder.frozen:
        features = all_features(encoder, images)
        return lambda rows: features[rows]
    prepared = torch.from_numpy(images.prepared(encoder.preprocessing))
    return lambda rows: encoder.features(augment(prepared[rows], config, generator))


def rate_at(step: int, n_steps: int) -> float:
    """Learning rate as a share of its peak: linear warm-up, then half a cosine to zero."""
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm_up * 0.5 * (1 + math.cos(math.pi * step / n_steps))


def balanced_batches(
    labels: Tensor, config: TrainingConfig, n_batches: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Rows of batches that hold the same number of images of each of some labels.

    Every batch then has positives for each of its images, however many labels there are.
    """
    decks = [
        _dealt(torch.nonzero(labels == label).flatten(), generator)
        for label in range(int(labels.max()) + 1)
    ]
    n_labels = min(config.labels_per_batch, len(decks))
    for _ in range(n_batches):
        chosen = torch.randperm(len(decks), generator=generator)[:n_labels].tolist()
        rows = [next(decks[label]) for label in chosen for _ in range(config.images_per_label)]
        yield torch.tensor(rows)


def _dealt(rows: Tensor, generator: torch.Generator) -> Iterator[int]:
    """Rows in random order, each once before any comes again, without end."""
    while True:
        yield from rows[torch.randperm(len(rows), generator=generator)].tolist()


def augment(images: Tensor, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """Mirror and move ``images`` (B, H, W, 3) at random, as ``config`` says."""
    if config.flip:
        mirrored = torch.rand(len(images), generator=generator) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(2), images)
    if config.shift:
        height, width = images.shape[1:3]
        padded = torch.nn.functional.pad(images, (0, 0, *[config.shift] * 4))
        offsets = torch.randint(0, 2 * config.shift + 1, (2, len(images)), generator=generator)
        down = offsets[0, :, None] + torch.arange(height)
        across = offsets[1, :, None] + torch.arange(width)
        image = torch.arange(len(images))[:, None, None]
        images = padded[image, down[:, :, None], across[:, None, :]]
    return images
