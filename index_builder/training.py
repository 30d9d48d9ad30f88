"""Training of an encoder and the parameters of its objective.

The parts, in this order: random changes of images, several processes, and the training in batches.

``torchrun`` starts the processes. Every process draws the same batches and computes the features of
its part of a batch. Each process then gathers the features of the other processes, with the
gradients. From all features, each process computes the loss of the whole batch, because a loss over
pairs cannot be computed from the parts. `DistributedDataParallel` averages the gradients over the
processes. Each process has the same loss. In the backward pass, the features of a process get the
sum of the gradients from all processes. The average is therefore the gradient of the whole batch.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn
from torch import Tensor, nn

from index_builder.configuration.encoder import TrainingConfig
from index_builder.datasets import LabelledImages
from index_builder.networks import MetricEncoder
from index_builder.networks.encoder import all_features
from index_builder.networks.trunk import dropped_out
from index_builder.objectives import Objective
from index_builder.objectives.objective import Sampling
from index_builder.progress import console, track
from model_store.errors import ConfigError, TrainingDiverged

_ASPECT = math.log(4 / 3)
"""Maximum absolute log aspect ratio of a crop (Szegedy et al. 2015)."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """The random changes of B images.

    Attributes
    ----------
    mirrored : (B,) whether each image is mirrored; None if no image is mirrored.
    offsets : (2, B) vertical and horizontal shift in pixels. ``most`` is added to each shift, so
        the values are in [0, 2 ``most``]. None if no image is shifted.
    most : maximum shift in pixels, in either direction.
    boxes : (B, 4) crops: the share of the height, the share of the width, and the vertical and
        horizontal position of the centre, from −1 to 1; None if no image is cropped.
    lights : (B, 3) factors of brightness, contrast and saturation; None if no colours change.
    """

    mirrored: Tensor | None
    offsets: Tensor | None
    most: int
    boxes: Tensor | None = None
    lights: Tensor | None = None

    @classmethod
    def drawn(cls, n: int, config: TrainingConfig, generator: torch.Generator) -> Augmentation:
        """Draw the augmentation of ``n`` images."""
        mirrored = torch.rand(n, generator=generator) < 0.5 if config.flip else None
        offsets = None
        if config.shift:
            offsets = torch.randint(0, 2 * config.shift + 1, (2, n), generator=generator)
        boxes = None
        if config.crop < 1:
            area, aspect, down, across = torch.rand(4, n, generator=generator)
            area = config.crop + (1 - config.crop) * area
            ratio = ((2 * aspect - 1) * _ASPECT).exp()
            sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp_max(1)
            boxes = torch.cat([sides, 2 * torch.stack([down, across], 1) - 1], 1)
        lights = None
        if config.jitter:
            lights = 1 + config.jitter * (2 * torch.rand(n, 3, generator=generator) - 1)
        return cls(mirrored, offsets, config.shift, boxes, lights)

    def of(self, positions: Tensor) -> Augmentation:
        """Return the part of the augmentation for the images at ``positions``."""
        return Augmentation(
            None if self.mirrored is None else self.mirrored[positions],
            None if self.offsets is None else self.offsets[:, positions],
            self.most,
            None if self.boxes is None else self.boxes[positions],
            None if self.lights is None else self.lights[positions],
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Mirror, shift, crop and recolour ``images`` (B, H, W, 3) uint8."""
        if self.mirrored is not None:
            images = torch.where(self.mirrored[:, None, None, None], images.flip(2), images)
        if self.offsets is not None:
            height, width = images.shape[1:3]
            padded = torch.nn.functional.pad(images, (0, 0, *[self.most] * 4))
            down = self.offsets[0, :, None] + torch.arange(height)
            across = self.offsets[1, :, None] + torch.arange(width)
            image = torch.arange(len(images))[:, None, None]
            images = padded[image, down[:, :, None], across[:, None, :]]
        if self.boxes is not None:
            images = _cropped(images, self.boxes)
        if self.lights is not None:
            images = _lit(images, self.lights)
        return images


def _cropped(images: Tensor, boxes: Tensor) -> Tensor:
    """Crop the images, and resize the crops bilinearly to the original size."""
    sides, centres = boxes[:, :2], boxes[:, 2:] * (1 - boxes[:, :2])
    turns = torch.zeros(len(images), 2, 3)
    turns[:, 0, 0], turns[:, 1, 1] = sides[:, 1], sides[:, 0]
    turns[:, 0, 2], turns[:, 1, 2] = centres[:, 1], centres[:, 0]
    pixels = images.permute(0, 3, 1, 2).float()
    grid = torch.nn.functional.affine_grid(turns, list(pixels.shape), align_corners=False)
    seen = torch.nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    return _bytes(seen.permute(0, 2, 3, 1))


def _lit(images: Tensor, lights: Tensor) -> Tensor:
    """Scale the brightness, the contrast around the mean grey, and the saturation around grey."""
    brightness, contrast, saturation = lights.T[:, :, None, None, None]
    pixels = (images * brightness).clamp(0, 255)
    grey = (pixels * torch.tensor(_LUMA)).sum(-1, keepdim=True)
    middle = grey.mean((1, 2), keepdim=True)
    pixels = (middle + (pixels - middle) * contrast).clamp(0, 255)
    grey = (pixels * torch.tensor(_LUMA)).sum(-1, keepdim=True)
    return _bytes(grey + (pixels - grey) * saturation)


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)


N_PROCESSES = "WORLD_SIZE"
"""The environment variable with the number of processes, set by torchrun."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes that train together.

    Attributes
    ----------
    rank : number of this process, from 0; process 0 writes the results.
    size : number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """True only in the process that writes files."""
        return self.rank == 0

    def part(self, rows: Tensor) -> Tensor:
        """Return positions (P,) in ``rows`` (B,): this process computes the features of these rows.

        The gathering needs the same P in all processes, so missing positions are filled with the
        last row.
        """
        each = -(-len(rows) // self.size)
        positions = torch.arange(self.rank * each, (self.rank + 1) * each)
        return positions.clamp(max=len(rows) - 1)

    def gathered(self, features: Tensor, n: int) -> Tensor:
        """Gather the features (n, F) of all rows from the parts (P, F) of all processes."""
        if self.size == 1:
            return features
        parts = torch.distributed.nn.functional.all_gather(features)
        return torch.cat(list(parts))[:n]

    def wait(self) -> None:
        """Wait until every process calls this method."""
        if self.size > 1:
            torch.distributed.barrier()

    def together(self, step: nn.Module) -> nn.Module:
        """Return a module that computes ``step`` and averages the gradients over all processes."""
        if self.size == 1:
            return step
        return nn.parallel.DistributedDataParallel(step)


ALONE = ProcessGroup()


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Yield the processes that ``torchrun`` started; without ``torchrun``, only this process."""
    if int(os.environ.get(N_PROCESSES, "1")) == 1:
        yield ALONE
        return
    torch.distributed.init_process_group("gloo")
    try:
        group = ProcessGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())
        yield group
        group.wait()  # process 0 may still be writing
    finally:
        torch.distributed.destroy_process_group()


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


FeatureSource = Callable[[Tensor], Tensor]
"""Function from rows (B,) int64 of training images to features (B, F) with gradients."""

WARM_UP_STEPS = 100
"""Number of warm-up steps, at most a tenth of all steps. Without warm-up, AdamW's first steps would
be as large as later steps, although the first gradients are uninformative."""

PREPARED_BYTES = 2**31
"""If all decoded training images need at most this many bytes, they are decoded once, before the
training. Otherwise, each batch is decoded when it is used."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The loss, learning rate and time of one pass over the training images."""

    loss: float
    learning_rate: float
    seconds: float


def trunk_device(config: TrainingConfig) -> torch.device:
    """Return the device that computes the trunk.

    Raises
    ------
    ConfigError : the configuration requires a GPU, and torch finds none.
    """
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise ConfigError(
            "training.device = 'cuda', but torch finds no GPU here. Use 'auto' or 'cpu'."
        )
    return torch.device("cuda" if there and config.device != "cpu" else "cpu")


def place_for_training(encoder: MetricEncoder, config: TrainingConfig) -> None:
    """Move the trunk to the device and precision of the training.

    Raises
    ------
    ConfigError : the configuration requires a GPU, and torch finds none.
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
    group: ProcessGroup = ALONE,
) -> list[Epoch]:
    """Train in place: AdamW or SGD, warm-up, and a cosine schedule over ``config.epochs``.

    Parameters
    ----------
    encoder : the encoder; its parameters with ``requires_grad`` are trained.
    objective : the loss; its parameters are trained too.
    features_of : see `feature_source`.
    labels : (N,) int64 codes, from 0 without gaps.
    generator : draws batches and dropout masks.
    dropout : share of the features to drop.
    group : the processes that train together; all other arguments must be equal in these processes.

    Raises
    ------
    TrainingDiverged : the loss is no longer a number.
    """
    sampled = partial(batches_of, objective.sampling, labels, config, generator)
    n_steps = config.epochs * sampled()[0]
    optimizer = _optimizer(encoder, objective, config)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, n_steps))
    encoder.train()
    loss_of = group.together(_BatchLoss(encoder, objective, features_of, dropout, generator))
    history = []
    for epoch in range(config.epochs):
        started, total, rate = time.perf_counter(), 0.0, float(schedule.get_last_lr()[0])
        n_batches, batches = sampled()
        for rows, seen in track(batches, f"epoch {epoch + 1}/{config.epochs}", n_batches):
            optimizer.zero_grad()
            loss = loss_of(rows, seen)
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
    """The loss of a batch as a module, which `DistributedDataParallel` requires."""

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
    group: ProcessGroup = ALONE,
) -> FeatureSource:
    """Return a function from rows to features; the features of a frozen trunk are computed once.

    Parameters
    ----------
    generator : draws the augmentation.
    group : processes that each compute a part of the features; their random draws are equal.
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
        return torch.from_numpy(images.at(rows.numpy()).prepared(encoder.preprocessing))

    return lambda rows: in_parts(rows, decoded)


def _optimizer(
    encoder: MetricEncoder, objective: Objective, config: TrainingConfig
) -> torch.optim.Optimizer:
    """Return the optimizer of all trained parameters.

    SGD with momentum uses Nesterov's form.
    """
    groups = _parameter_groups(encoder, objective, config)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate)
    momentum = config.momentum
    return torch.optim.SGD(
        groups, lr=config.learning_rate, momentum=momentum, nesterov=momentum > 0
    )


def _parameter_groups(
    encoder: MetricEncoder, objective: Objective, config: TrainingConfig
) -> list[dict[str, Any]]:
    """Return groups of trained parameters; a group has one weight decay and one learning rate.

    The last layer has no weight decay if the objective includes the prior of the last layer.
    """
    learned = [p for p in encoder.parameters() if p.requires_grad]
    exempt = set(encoder.last_layer.parameters()) if objective.holds_prior else set()
    beside = [p for p in objective.parameters() if p.requires_grad]
    decay, rate = config.weight_decay, config.learning_rate
    return [
        {"params": [p for p in learned if p not in exempt], "weight_decay": decay},
        {"params": [p for p in learned if p in exempt], "weight_decay": 0.0},
        {"params": beside, "weight_decay": decay, "lr": objective.learning_rate or rate},
    ]


def rate_at(step: int, n_steps: int) -> float:
    """Return the learning rate, divided by its peak, at a step.

    The rate rises linearly in the warm-up; a half period of a cosine then lowers it to zero.
    """
    warm_up = min(1.0, (step + 1) / min(WARM_UP_STEPS, n_steps // 10 + 1))
    return warm_up * 0.5 * (1 + math.cos(math.pi * step / n_steps))
