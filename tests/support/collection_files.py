"""A small collection of real drawings, and what an indexing of it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

N_IMAGES = 200
"""More than three blocks, the last of which is not full."""


def write_drawings(root: Path, n_images: int = N_IMAGES) -> None:
    """The first of scikit-learn's digits, one sub-folder for each label."""
    data = load_digits()
    for row in range(n_images):
        folder = root / str(data.target[row])
        folder.mkdir(exist_ok=True)
        pixels = np.round(data.images[row] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{row:04d}.png")


def lines(path: Path) -> list[dict[str, Any]]:
    """A report's."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
