"""Fashion-MNIST and MNIST, read from their official files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets.images import LabelledImages, from_arrays
from model_store.errors import DatasetError

DATA_DIR_VARIABLE = "VOUCH_DATA_DIR"

FASHION_LABELS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

_N_IMAGES = {"train": 60_000, "t10k": 10_000}


def idx_dataset(
    name: Literal["FashionMNIST", "MNIST"],
    part: Literal["train", "t10k"],
    raw: Path | None = None,
) -> LabelledImages:
    """Load one part of Fashion-MNIST or MNIST, 28 × 28 grey.

    The files are read from the folder ``raw``. The default folder is ``$VOUCH_DATA_DIR/<name>/raw``
    if the variable is set. If the variable is not set, torchvision downloads the files to
    ``~/.cache/vouch``.

    Raises
    ------
    DatasetError : the files are missing, incomplete or cannot be downloaded.
    """
    raw = raw or _raw_folder(name)
    images = _read_idx(raw / f"{part}-images-idx3-ubyte.gz")
    codes = _read_idx(raw / f"{part}-labels-idx1-ubyte.gz")
    if images.shape != (_N_IMAGES[part], 28, 28) or codes.shape != (_N_IMAGES[part],):
        raise DatasetError(
            f"{name} {part}: found images {images.shape} and labels {codes.shape}, wanted "
            f"({_N_IMAGES[part]}, 28, 28) and ({_N_IMAGES[part]},). Fetch the files again."
        )
    names = FASHION_LABELS if name == "FashionMNIST" else tuple("0123456789")
    return from_arrays(f"{name.lower()}-{part}", images, [names[code] for code in codes])


def _raw_folder(name: str) -> Path:
    configured = os.environ.get(DATA_DIR_VARIABLE)
    if configured:
        folder = Path(configured) / name / "raw"
        if not folder.is_dir():
            raise DatasetError(
                f"{DATA_DIR_VARIABLE} is {configured!r}, but there is no folder {name}/raw in it. "
                "Put the four official .gz files there, or unset the variable to download them."
            )
        return folder
    from torchvision import datasets  # noqa: PLC0415 - reading what is there needs no torch

    root = Path.home() / ".cache" / "vouch"
    try:
        getattr(datasets, name)(root, download=True)
    except (OSError, RuntimeError) as error:
        raise DatasetError(
            f"{name} could not be downloaded ({error}). Set {DATA_DIR_VARIABLE} to a folder that "
            f"holds {name}/raw with the four official .gz files."
        ) from error
    return root / name / "raw"


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes (LeCun's format: type, rank, sizes, values)."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DatasetError(f"{path} cannot be read ({error}). Fetch the file again.") from error
    rank = content[3]
    shape = np.frombuffer(content, ">u4", rank, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if values.size != shape.prod():
        raise DatasetError(f"{path} holds {values.size} values, its header says {shape.prod()}.")
    return values.reshape(shape)
