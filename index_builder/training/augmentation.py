"""Random shifts, flips and crops of training images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from index_builder.configuration.encoder import TrainingConfig


@dataclass(frozen=True, slots=True)
class Augmentation:
    """The augmentation of each of B images.

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
        """Return the augmentation of the images at ``positions``."""
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
