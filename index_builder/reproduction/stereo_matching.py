"""Dense stereo matching: pairs of images, the embedding of patches, and the cost volume.

A pair has known disparities, and is of KITTI or synthetic. The embedding of 9 × 9 patches is four
3 × 3 convolutions, trained with triplets. The cost volume of similarities gives the most similar
disparity (the winner) of each pixel, and its uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from index_builder.networks.trunk import drawn_from
from model_store.errors import DatasetError

KITTI = {"KITTI 2012": "Kitti2012Stereo", "KITTI 2015": "Kitti2015Stereo"}
"""Names of torchvision's readers; they read ``Kitti2012/training/…`` and
``Kitti2015/training/…``."""

_NOISE = 4.0
"""Standard deviation of the noise in synthetic pairs, in grey levels from 0 to 255."""

_GAINS = (0.85, 1.15)
"""Minimum and maximum brightness of a synthetic right image, relative to the left image."""

_N_PLANES = 6
"""Number of planes in front of the background of a synthetic pair."""


@dataclass(frozen=True, slots=True)
class StereoPair:
    """Two rectified views of a scene: a point is in the same row of both images.

    Attributes
    ----------
    left, right : (H, W, 3) uint8.
    disparity : (H, W) float32, in pixels ≥ 0: the point at (i, j) in the left image is at (i, j −
        d) in the right image.
    known : (H, W) bool, whether the disparity is known and the point is visible in both images.
    """

    left: NDArray[np.uint8]
    right: NDArray[np.uint8]
    disparity: NDArray[np.float32]
    known: NDArray[np.bool_]


def kitti(name: str, root: Path) -> list[StereoPair] | None:
    """Return KITTI's training pairs; None if ``root`` does not have them.

    Parameters
    ----------
    name : a key of `KITTI`.

    Raises
    ------
    DatasetError : the files are damaged.
    """
    if not (root / name.title().replace(" ", "") / "training").is_dir():
        return None
    from torchvision import datasets  # noqa: PLC0415 - slow: it brings torch's compiler

    try:
        found = getattr(datasets, KITTI[name])(str(root), split="train")
        return [_of_kitti(found[number]) for number in range(len(found))]
    except (OSError, RuntimeError, ValueError, FileNotFoundError) as error:
        raise DatasetError(f"{name} in {root} cannot be read ({error}). Fetch it again.") from error


def _of_kitti(example: tuple[object, ...]) -> StereoPair:
    left, right, disparity, *_ = example
    values = np.abs(np.asarray(disparity, dtype=np.float32))
    values = values[0] if values.ndim > 2 else values
    first, second = (np.asarray(image)[..., :3].astype(np.uint8) for image in (left, right))
    return StereoPair(first, second, values, values > 0)


def made_pair(
    photograph: NDArray[np.uint8], most: int, generator: np.random.Generator
) -> StereoPair:
    """Make a synthetic pair from a photograph: planes at different depths, viewed by two cameras.

    In the right image, each pixel of the left image is shifted by its disparity. Nearer pixels
    cover farther pixels. If no plane covers a pixel of the right image, this pixel shows another
    part of the photograph. The right image is brighter or darker than the left image, and both
    images have noise.

    Parameters
    ----------
    photograph : (H, W, 3) uint8, wider than twice ``most``.
    most : maximum disparity in pixels.
    """
    height, width = photograph.shape[:2]
    disparity = _planes(height, width, most, generator)
    rows, columns = np.indices((height, width))
    target = columns - disparity
    order = np.argsort(disparity, axis=None, kind="stable")  # the nearest pixels are written last
    inside = target.flat[order] >= 0
    order = order[inside]
    winner = np.full((height, width), -1)
    winner[rows.flat[order], target.flat[order]] = order
    right = np.roll(photograph, generator.integers(most, width - most), axis=1)
    seen = winner >= 0
    right[seen] = photograph.reshape(-1, 3)[winner[seen]]
    known = np.zeros(height * width, dtype=bool)
    known[winner[seen]] = True
    gain = generator.uniform(*_GAINS)
    return StereoPair(
        _noisy(photograph, 1.0, generator),
        _noisy(right, gain, generator),
        disparity.astype(np.float32),
        known.reshape(height, width),
    )


def _planes(
    height: int, width: int, most: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return disparities (H, W) of slanted rectangles in front of a slanted background."""
    rows, columns = np.indices((height, width))
    disparity = np.zeros((height, width))
    for number in range(_N_PLANES + 1):
        top, left, bottom, right = 0, 0, height, width
        if number:
            top, left = (int(generator.integers(side * 3 // 4)) for side in (height, width))
            bottom = top + int(generator.integers(height // 6, height // 2))
            right = left + int(generator.integers(width // 6, width // 2))
        base = generator.uniform(0, most * (0.3 if number == 0 else 0.9))
        tilt = generator.uniform(-0.15, 0.15, 2) * most
        plane = base + tilt[0] * rows / height + tilt[1] * columns / width
        within = np.s_[top:bottom, left:right]
        # Nearer planes hide farther planes.
        disparity[within] = np.maximum(disparity[within], plane[within])
    return disparity.clip(0, most).round().astype(np.int64)


def _noisy(
    image: NDArray[np.uint8], gain: float, generator: np.random.Generator
) -> NDArray[np.uint8]:
    noise = generator.normal(0, _NOISE, image.shape)
    return (image * gain + noise).clip(0, 255).round().astype(np.uint8)


def made_pairs(
    photograph: NDArray[np.uint8], n: int, most: int, generator: np.random.Generator
) -> Iterator[StereoPair]:
    """Make ``n`` pairs with different planes from one photograph."""
    for _ in range(n):
        yield made_pair(photograph, most, generator)


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


TOLERANCE = 3
"""A disparity is correct if its error is at most this number of pixels (KITTI's rule)."""

TEMPERATURES = np.logspace(-3, 0, 31)
"""Candidate temperatures of the softmax over disparities."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Disparities:
    """The disparity of each pixel of an image, with its uncertainty.

    Attributes
    ----------
    winner : (H, W) int64, disparity in pixels.
    confidence : (H, W), probability that the true disparity is within `TOLERANCE` of the winner.
    std : (H, W), standard deviation of the disparity in pixels.
    """

    winner: NDArray[np.int64]
    confidence: Floats
    std: Floats


def cost_volume(left: Tensor, right: Tensor, most: int) -> Tensor:
    """Return the similarity of left pixel (i, j) and right pixel (i, j − d): (most + 1, H, W).

    The similarity is −∞ if column j − d is outside the image.

    Parameters
    ----------
    left, right : (F, H, W), unit vectors.
    most : maximum disparity in pixels.
    """
    _, height, width = left.shape
    volume = left.new_full((most + 1, height, width), -torch.inf)
    for d in range(min(most, width - 1) + 1):
        volume[d, :, d:] = (left[:, :, d:] * right[:, :, : width - d]).sum(0)
    return volume


def matched(volume: Tensor, temperature: float) -> Disparities:
    """Choose the disparity with the highest similarity for each pixel, and compute its uncertainty.

    The uncertainty depends on the similarities of all disparities. The probability of a disparity
    is p(d) ∝ exp(s_d / T): a softmax of the similarities over all disparities.

    Parameters
    ----------
    volume : the result of `cost_volume`.
    temperature : T, see `fitted_temperature`.
    """
    winner = volume.argmax(0)
    probabilities = (volume.double() / temperature).softmax(0)
    disparities = torch.arange(len(volume), dtype=torch.float64)[:, None, None]
    mean = (probabilities * disparities).sum(0)
    variance = (probabilities * (disparities - mean).square()).sum(0)
    within = (disparities - winner).abs() <= TOLERANCE
    confidence = (probabilities * within).sum(0)
    return Disparities(winner.numpy(), confidence.numpy(), variance.sqrt().numpy())


def fitted_temperature(similarities: Tensor, disparities: NDArray[np.float32]) -> float:
    """Return the maximum-likelihood temperature for known disparities.

    Parameters
    ----------
    similarities : (most + 1, n), columns of `cost_volume` for n pixels. The images of these pixels
        were not used for training.
    disparities : (n,), true disparities of these pixels.
    """
    values = similarities.double()
    wanted = torch.from_numpy(disparities).round().long().clamp(0, len(values) - 1)[None]
    seen = values.gather(0, wanted)[0].isfinite()
    values, wanted = values[:, seen], wanted[:, seen]
    likelihoods = [
        float((values / t).log_softmax(0).gather(0, wanted).mean()) for t in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmax(likelihoods))])


def patch_correlation(image: NDArray[np.uint8], patch: int) -> Tensor:
    """Return a baseline without training: the patch of each pixel as a unit vector, (F, H, W).

    The inner product of two such vectors is a normalised cross-correlation.

    Parameters
    ----------
    image : (H, W, 3).
    patch : height and width of a patch in pixels; odd.
    """
    grey = torch.from_numpy(image).float().mean(2)[None, None]
    padded = torch.nn.functional.pad(grey, (patch // 2,) * 4, mode="reflect")
    patches = torch.nn.functional.unfold(padded, patch)[0].reshape(patch**2, *image.shape[:2])
    return torch.nn.functional.normalize(patches - patches.mean(0), dim=0)
