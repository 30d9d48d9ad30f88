"""Training of an encoder and whatever its objective learns beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from index_builder.configuration import TrainingConfig
from index_builder.datasets import LabelledImages
from index_builder.distributed import ALONE, Group
from index_builder.features import all_features
from index_builder.networks import MetricEncoder
from index_builder.networks.dropout import dropped_out
from index_builder.objectives import Objective
from index_builder.progress import console, track
from model_store.errors import ConfigError, TrainingDiverged

FeatureSource = Callable[[Tensor], Tensor]
"""Features (B, F), with their graph, of the training images of some rows (B,) int64."""

WARM_UP_STEPS = 100
"""AdamW's first steps are as large as its later ones, and the first gradients mean nothing. A
tenth of the training, where that is less."""

PREPARED_BYTES = 2**31
"""Training images that take no more are decoded once; others for each batch that they are in."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training images came to."""

    loss: float
    learning_rate: float
    seconds: float


def trunk_device(config: TrainingConfig) -> torch.device:
    """Where the trunk is to be computed.

    Raises
    ------
    ConfigError : a GPU is asked for, and torch finds none.
    """
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise ConfigError(
            "training.device = 'cuda', but torch finds no GPU here. Ask for 'auto' or 'cpu'."
        )
    return torch.device("cuda" if there and config.device != "cpu" else "cpu")


def place_for_training(encoder: MetricEncoder, config: TrainingConfig) -> None:
    """Bring the trunk to where, and the precision in which, it is to be trained.

    Raises
    ------
    ConfigError : a GPU is asked for, and torch finds none.
    """
    device = trunk_device(config)
    mixed = config.precision == "mixed" or (config.precision == "auto" and device.type == "cuda")
    encoder.place_trunk(device, mixed_precision=mixed)


def train(
    encoder: MetricEncoder,
    objective: Objective,
    features_of: FeatureSource,
    labels: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
    dropout: float = 0.0,
    group: Group = ALONE,
) -> list[Epoch]:
    """Train in place: AdamW, warm-up, and a cosine schedule over ``config.epochs``.

    Parameters
    ----------
    encoder : its parameters that want a gradient are trained, and so are those of ``objective``.
    objective : what is minimised.
    features_of : see `feature_source`.
    labels : (N,) int64 codes, from 0 without gaps.
    generator : decides the batches, and what is dropped.
    dropout : share of the features that each image loses.
    group : the processes that train together; each is given the same of everything else.

    Raises
    ------
    TrainingDiverged : the loss is no number any more.
    """
    n_labels = min(config.labels_per_batch, int(labels.max()) + 1)
    n_batches = max(1, len(labels) // (n_labels * config.images_per_label))
    n_steps = config.epochs * n_batches
    optimizer = torch.optim.AdamW(
        _parameter_groups(encoder, objective, config.weight_decay), lr=config.learning_rate
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, n_steps))
    encoder.train()
    loss_of = group.together(_BatchLoss(encoder, objective, features_of, dropout, generator))
    history = []
    for epoch in range(config.epochs):
        started, total, rate = time.perf_counter(), 0.0, float(schedule.get_last_lr()[0])
        batches = balanced_batches(labels, config, n_batches, generator)
        for rows in track(batches, f"epoch {epoch + 1}/{config.epochs}", n_batches):
            optimizer.zero_grad()
            loss = loss_of(rows, labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            value = loss.item()
            if not math.isfinite(value):
                raise TrainingDiverged(
                    f"The loss is {value} in epoch {epoch + 1}. Lower training.learning_rate."
                )
            total += value
        history.append(Epoch(total / n_batches, rate, time.perf_counter() - started))
        if group.writes:
            console.print(
                f"epoch {epoch + 1}/{config.epochs}: loss {history[-1].loss:.4f}, "
                f"{history[-1].seconds:.0f} s"
            )
    encoder.eval()
    return history


class _BatchLoss(nn.Module):
    """The loss of a batch by its rows: a module, since that is what processes can share."""

    def __init__(
        self,
        encoder: MetricEncoder,
        objective: Objective,
        features_of: FeatureSource,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self._features_of = features_of
        self._dropout = dropout
        self._generator = generator

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Loss of the images of ``rows`` (B,) with ``labels`` (B,)."""
        features = dropped_out(self._features_of(rows), self._dropout, self._generator)
        loss: Tensor = self.objective(features, labels, self.encoder.last_layer)
        return loss


def feature_source(
    encoder: MetricEncoder,
    images: LabelledImages,
    config: TrainingConfig,
    generator: torch.Generator,
    group: Group = ALONE,
) -> FeatureSource:
    """Features of training images by row: computed once where the trunk is frozen, else each time.

    Parameters
    ----------
    generator : decides the augmentation.
    group : whose processes compute them in parts; what one decides at random, all do.
    """
    if encoder.frozen:
        features = all_features(encoder, images)
        return lambda rows: features[rows]

    def in_parts(rows: Tensor, images_of: Callable[[Tensor], Tensor]) -> Tensor:
        part = group.part(rows)
        changes = Augmentation.drawn(len(rows), config, generator).of(part)
        return group.gathered(encoder.features(changes(images_of(rows[part]))), len(rows))

    if len(images) * encoder.preprocessing.n_bytes <= PREPARED_BYTES:
        prepared = torch.from_numpy(images.prepared(encoder.preprocessing))
        return lambda rows: in_parts(rows, lambda some: prepared[some])

    def decoded(rows: Tensor) -> Tensor:
        return torch.from_numpy(images.subset(rows.numpy()).prepared(encoder.preprocessing))

    return lambda rows: in_parts(rows, decoded)


def _parameter_groups(
    encoder: MetricEncoder, objective: Objective, weight_decay: float
) -> list[dict[str, Any]]:
    """What is learned; a last layer whose prior is in the objective does not decay besides."""
    learned = [p for p in nn.ModuleList([encoder, objective]).parameters() if p.requires_grad]
    exempt = set(encoder.last_layer.parameters()) if objective.holds_prior else set()
    return [
        {"params": [p for p in learned if p not in exempt], "weight_decay": weight_decay},
        {"params": [p for p in learned if p in exempt], "weight_decay": 0.0},
    ]


def rate_at(step: int, n_steps: int) -> float:
    """Learning rate as a share of its peak: linear warm-up, then half a cosine to zero."""
    warm_up = min(1.0, (step + 1) / min(WARM_UP_STEPS, n_steps // 10 + 1))
    return warm_up * 0.5 * (1 + math.cos(math.pi * step / n_steps))


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


@dataclass(frozen=True, slots=True)
class Augmentation:
    """What is done to each of B images.

    Attributes
    ----------
    mirrored : (B,) whether it is mirrored; None where none is.
    offsets : (2, B) by how many pixels it is moved down and across, from 0 to twice the most; None
        where none is.
    most : pixels that an image is moved by at most, either way.
    """

    mirrored: Tensor | None
    offsets: Tensor | None
    most: int

    @classmethod
    def drawn(cls, n: int, config: TrainingConfig, generator: torch.Generator) -> Augmentation:
        """At random for ``n`` images, as ``config`` says."""
        mirrored = torch.rand(n, generator=generator) < 0.5 if config.flip else None
        offsets = None
        if config.shift:
            offsets = torch.randint(0, 2 * config.shift + 1, (2, n), generator=generator)
        return cls(mirrored, offsets, config.shift)

    def of(self, positions: Tensor) -> Augmentation:
        """What is done to some of the images."""
        return Augmentation(
            None if self.mirrored is None else self.mirrored[positions],
            None if self.offsets is None else self.offsets[:, positions],
            self.most,
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Mirror and move ``images`` (B, H, W, 3)."""
        if self.mirrored is not None:
            images = torch.where(self.mirrored[:, None, None, None], images.flip(2), images)
        if self.offsets is not None:
            height, width = images.shape[1:3]
            padded = torch.nn.functional.pad(images, (0, 0, *[self.most] * 4))
            down = self.offsets[0, :, None] + torch.arange(height)
            across = self.offsets[1, :, None] + torch.arange(width)
            image = torch.arange(len(images))[:, None, None]
            images = padded[image, down[:, :, None], across[:, None, :]]
        return images


def augment(images: Tensor, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """Mirror and move ``images`` (B, H, W, 3) at random, as ``config`` says."""
    return Augmentation.drawn(len(images), config, generator)(images)
