"""Read mosaics: small images of equal size, stored row by row in one lossless image file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from index_builder.datasets.images import Pixels


def tiles(path: Path, side: int) -> Pixels:
    """Return the square images (N, side, side, 3) of a mosaic file, row by row."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    grid = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid.reshape(-1, side, side, 3))
