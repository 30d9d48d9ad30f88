"""Small data sets: digits, MNIST and Fashion-MNIST, and images of another type than a gallery's."""

from __future__ import annotations

import gzip
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from index_builder.configuration.build import OutlierKind
from model_store.errors import DatasetError

from .images import LabelledImages, Pixels, from_arrays

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


def digits() -> LabelledImages:
    """All digits (Alpaydin & Kaynak 1998, the UCI test set), bright ink on a black ground.

    The table is read without `sklearn.datasets.load_digits`, because most builds need nothing else
    of scikit-learn, and its import takes two seconds of CPU time.
    """
    library = find_spec("sklearn")
    if library is None or library.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed", name="sklearn")
    with gzip.open(Path(library.origin).with_name("datasets") / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    inks = table[:, :-1].reshape(-1, 8, 8)
    images = np.round(inks * (255 / 16)).astype(np.uint8)  # stored as counts 0..16
    return from_arrays("digit", images, [str(label) for label in table[:, -1]])


N_CROPS = 1000
"""Number of crops of each photograph. More crops would add no information."""


def outliers(kind: OutlierKind, part: int, generator: np.random.Generator) -> LabelledImages | None:
    """Return the outliers of one kind; None for ``none``.

    Parameters
    ----------
    kind : ``photographs`` are grey crops of scikit-learn's two photographs, upright or rotated;
        ``digits`` are scikit-learn's digits; ``mnist`` is the MNIST test set.
    part : 0 for calibration, 1 for evaluation; the two parts share no source image.
    """
    if kind == "none":
        return None
    if kind == "photographs":
        from sklearn.datasets import load_sample_images  # noqa: PLC0415 - slow

        photograph = load_sample_images().images[part]
        return from_arrays(
            f"photograph-{part}", _crops(photograph, generator), ["photograph"] * N_CROPS
        )
    source = digits() if kind == "digits" else idx_dataset("MNIST", "t10k")
    order = generator.permutation(len(source))
    return source.at(np.sort(order[part::2]))


def _crops(photograph: Pixels, generator: np.random.Generator) -> Pixels:
    """Crop random squares of 48 to 192 pixels, and return the crops in grey, resized to 48 × 48."""
    side = 48
    grey = photograph.mean(axis=-1)
    crops = np.empty((N_CROPS, side, side), dtype=np.uint8)
    for row in range(N_CROPS):
        factor = int(generator.integers(1, 5))
        top = generator.integers(0, grey.shape[0] - side * factor + 1)
        left = generator.integers(0, grey.shape[1] - side * factor + 1)
        window = grey[top : top + side * factor, left : left + side * factor]
        crops[row] = window.reshape(side, factor, side, factor).mean(axis=(1, 3)).round()
    return crops
