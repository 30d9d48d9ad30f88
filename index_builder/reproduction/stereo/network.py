"""The embedding of patches: four 3 × 3 convolutions, trained with triplets of 9 × 9 crops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from index_builder.networks.trunk import drawn_from
from index_builder.reproduction.stereo.pairs import StereoPair

N_FEATURES = 64
PATCH = 9
"""Height and width of the receptive field of four 3 × 3 convolutions."""

MARGIN = 0.2
"""Margin m of the triplet loss: the required difference between cos(a, p) and cos(a, n) (Žbontar &
LeCun 2016)."""

NEAR, FAR = 4, 10
"""Minimum and maximum distance of a negative from the positive in pixels (for KITTI)."""

BATCH = 128
LEARNING_RATE = 1e-3


class PatchEmbedding(nn.Module):
    """A network that computes a unit vector for each pixel of an image.

    Parameters
    ----------
    generator : draws the weights.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        with drawn_from(generator):
            self.layers = nn.Sequential(
                nn.Conv2d(3, N_FEATURES, 3),
                nn.ReLU(),
                nn.Conv2d(N_FEATURES, N_FEATURES, 3),
                nn.ReLU(),
                nn.Conv2d(N_FEATURES, N_FEATURES, 3),
                nn.ReLU(),
                nn.Conv2d(N_FEATURES, N_FEATURES, 3),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Embed all patches in standardised images (B, 3, H, W): (B, 64, H − 8, W − 8)."""
        return nn.functional.normalize(self.layers(images), dim=1)

    def embed(self, image: NDArray[np.uint8]) -> Tensor:
        """Embed every pixel of ``image`` (H, W, 3): (64, H, W). Borders are mirrored."""
        border = PATCH // 2
        with torch.no_grad():
            padded = nn.functional.pad(standardised(image)[None], (border,) * 4, mode="reflect")
            found: Tensor = self(padded)[0]
        return found


def standardised(image: NDArray[np.uint8]) -> Tensor:
    """Return an image (H, W, 3) with mean 0 and standard deviation 1, (3, H, W).

    Each image is standardised, because cameras differ in exposure.
    """
    values = torch.from_numpy(image).permute(2, 0, 1).float()
    return (values - values.mean()) / values.std().clamp_min(1)


def train_patches(
    pairs: Sequence[StereoPair], n_triplets: int, seed: int
) -> tuple[PatchEmbedding, list[float]]:
    """Train an embedding with the triplet loss [m + cos(a, n) − cos(a, p)]₊.

    The anchor is a patch of the left image. The positive is the corresponding patch of the right
    image. The negative is a patch in the same row as the positive, `NEAR` to `FAR` pixels away.

    Returns
    -------
    The trained embedding, and the loss at each step.
    """
    generator = torch.Generator().manual_seed(seed)
    network = PatchEmbedding(generator)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
    triplets = Triplets(pairs, seed)
    n_steps = max(1, n_triplets // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        anchor, positive, negative = network(triplets.draw(BATCH)).flatten(1).chunk(3)
        gap = (anchor * negative).sum(1) - (anchor * positive).sum(1)
        loss = (MARGIN + gap).clamp_min(0).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return network.eval(), losses


class Triplets:
    """A sampler of triplets of crops; all pixels with a known disparity are equally likely anchors.

    Parameters
    ----------
    pairs : image pairs; their sizes may differ.
    """

    def __init__(self, pairs: Sequence[StereoPair], seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._images = [(standardised(pair.left), standardised(pair.right)) for pair in pairs]
        self._places = [_anchors(pair) for pair in pairs]
        self._disparities = [pair.disparity for pair in pairs]
        sizes = np.array([len(places) for places in self._places])
        self._share = sizes / sizes.sum()

    def draw(self, n: int) -> Tensor:
        """Return 3 n crops (3 n, 3, 9, 9): anchors, then positives, then negatives."""
        parts: list[list[Tensor]] = [[], [], []]
        for number in self._generator.choice(len(self._places), n, p=self._share):
            left, right = self._images[number]
            row, column = self._places[number][
                self._generator.integers(len(self._places[number]))
            ].tolist()
            match = column - round(float(self._disparities[number][row, column]))
            off = self._generator.integers(NEAR, FAR + 1) * self._generator.choice((-1, 1))
            border = PATCH // 2
            last = right.shape[2] - border - 1
            if not border <= match + off <= last:
                off = -off
            for part, image, at in zip(
                parts, (left, right, right), (column, match, match + off), strict=True
            ):
                part.append(_crop(image, row, int(np.clip(at, border, last))))
        return torch.stack([crop for part in parts for crop in part])


def _crop(image: Tensor, row: int, column: int) -> Tensor:
    border = PATCH // 2
    return image[:, row - border : row + border + 1, column - border : column + border + 1]


def _anchors(pair: StereoPair) -> NDArray[np.int64]:
    """Return rows and columns (n, 2) of known pixels whose patches are inside both images."""
    border = PATCH // 2
    known = pair.known.copy()
    known[:border] = known[-border:] = False
    known[:, :border] = known[:, -border:] = False
    match = np.arange(known.shape[1]) - pair.disparity.round()
    known &= match >= border
    return np.argwhere(known)
