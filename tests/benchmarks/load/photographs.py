"""Photographs as users send them: JPEGs of 50 kB, of 300 kB and of 12 megapixels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TOKEN = b"%%NUMBER-OF-IT%%"
"""The place in a comment of the file where each request writes its number: no two are of the same
bytes, so that no server answers two from one encoding."""

SIZES = {"small": (640, 480), "web": (1600, 1200), "phone": (4000, 3000)}
"""Pixels across and down: some 50 kB, 300 kB and 3 MB."""

NOISE = 5.0
"""Standard deviation of a sensor's noise, of 255: without it an enlarged photograph would be a
third as large a file, and cheaper to decode, than one from a camera."""


def photographs(files: Sequence[Path], size: str, folder: Path) -> list[bytes]:
    """Enlarge photographs to one of the `SIZES`, and save each in ``folder`` as a JPEG."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = NOISE * np.random.default_rng(0).standard_normal((*SIZES[size], 1), np.float32)
    made = []
    for file in files:
        saved = folder / f"{size}-{file.parent.name}-{file.stem}.jpg"
        if not saved.exists():
            saved.write_bytes(_enlarged(file, noise))
        made.append(saved.read_bytes())
    return made


def _enlarged(file: Path, noise: NDArray[np.float32]) -> bytes:
    with Image.open(file) as image:
        if image.width >= image.height:
            noise = noise.swapaxes(0, 1)
        size = noise.shape[1], noise.shape[0]
        pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    noisy = Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))
    data = io.BytesIO()
    noisy.save(data, "JPEG", quality=85, comment=TOKEN)
    return data.getvalue()
