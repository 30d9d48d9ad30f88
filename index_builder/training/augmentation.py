"""Random shifts, flips, crops and colour changes of training images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from index_builder.configuration.encoder import TrainingConfig

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
