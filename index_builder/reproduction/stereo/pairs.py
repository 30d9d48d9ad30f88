"""Rectified stereo pairs with known disparities: KITTI, or synthetic pairs from a photograph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
