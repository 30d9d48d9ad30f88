"""Readers of small images: MNIST, Fashion-MNIST, CIFAR-10, SVHN, Chars74K, Omniglot."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from PIL import Image

from index_builder.datasets.images import LabelledImages, Pixels, from_arrays, joined
from index_builder.datasets.small_images import idx_dataset
from model_store.errors import DatasetError

from .official import Official, Origin, Publication

CIFAR10_LABELS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

CIFAR10 = Publication(
    "CIFAR-10",
    "",
    "cifar-10-batches-py/ (the Python version, unpacked), or cifar10/ with data_batch_1.webp to "
    "data_batch_5.webp and test_batch.webp (lossless mosaics of 100 × 100 images) and labels.npz",
    "https://www.cs.toronto.edu/~kriz/cifar.html, or let --download fetch it",
    {"train": (50_000, 10), "test": (10_000, 10)},
)
SVHN = Publication(
    "SVHN",
    "svhn",
    "test_32x32.mat",
    "http://ufldl.stanford.edu/housenumbers/, or let --download fetch it",
    {"test": (26_032, 10)},
)
CHARS74K = Publication(
    "Chars74K",
    "chars74k",
    "chars74k_img_32x32_5000.webp (a lossless mosaic) and labels.npz",
    "https://teodecampos.github.io/chars74k/",
    {"all": (5_000, 36)},
)


def mnist_like(name: Literal["FashionMNIST", "MNIST"], origin: Origin) -> Official:
    """Load Fashion-MNIST or MNIST from the official files: parts ``train`` and ``test``.

    Raises
    ------
    DatasetError
    """
    raw = origin.root / name / "raw"
    if origin.download and not raw.is_dir():
        _downloaded(name, name, root=str(origin.root))
    if not raw.is_dir():
        raise DatasetError(
            f"{name}: {raw} is missing. Put the four official .gz files there, or let --download "
            "fetch them."
        )
    parts = {
        "train": idx_dataset(name, "train", raw),
        "test": idx_dataset(name, "t10k", raw),
    }
    return Official(parts, {})


def cifar10(origin: Origin) -> Official:
    """CIFAR-10: parts ``train`` and ``test``.

    Raises
    ------
    DatasetError
    """
    mosaics = origin.root / "cifar10"
    if (mosaics / "labels.npz").is_file():
        with np.load(mosaics / "labels.npz", allow_pickle=False) as file:
            codes = {"train": file["train_labels"], "test": file["test_labels"]}
        names = {
            "train": [f"data_batch_{number}.webp" for number in range(1, 6)],
            "test": ["test_batch.webp"],
        }
        pixels = {
            part: np.concatenate(
                [tiles(CIFAR10.require(origin, f"cifar10/{one}"), 32) for one in of]
            )
            for part, of in names.items()
        }
    else:
        if not origin.download:
            CIFAR10.require(origin, "cifar-10-batches-py")
        sets = {
            part: _downloaded(
                "CIFAR10",
                "CIFAR-10",
                root=str(origin.root),
                train=part == "train",
                download=origin.download,
            )
            for part in ("train", "test")
        }
        pixels = {part: np.asarray(one.data) for part, one in sets.items()}
        codes = {part: np.asarray(one.targets) for part, one in sets.items()}
    parts = {
        part: from_arrays(
            f"cifar10-{part}", pixels[part], [CIFAR10_LABELS[code] for code in codes[part]]
        )
        for part in ("train", "test")
    }
    return CIFAR10.checked(origin, parts)


def svhn(origin: Origin) -> LabelledImages | None:
    """Return the test part of SVHN; None if the file is missing and `Origin.download` is not set.

    Raises
    ------
    DatasetError : the file is damaged or cannot be downloaded.
    """
    if not (origin.root / "svhn" / "test_32x32.mat").is_file() and not origin.download:
        return None
    one = _downloaded(
        "SVHN",
        "SVHN",
        root=str(origin.root / "svhn"),
        split="test",
        download=origin.download,
    )
    pixels = np.ascontiguousarray(np.transpose(one.data, (0, 2, 3, 1)))
    images = from_arrays("svhn-test", pixels, [str(code) for code in one.labels])
    return SVHN.checked(origin, {"test": images}).parts["test"]


def chars74k(origin: Origin) -> LabelledImages:
    """Load Chars74K (de Campos et al. 2009): characters in natural scenes, 32 × 32 pixels.

    Raises
    ------
    DatasetError
    """
    pixels = tiles(CHARS74K.require(origin, "chars74k_img_32x32_5000.webp"), 32)
    with np.load(CHARS74K.require(origin, "labels.npz"), allow_pickle=False) as file:
        labels = [str(code) for code in file["labels"]]
    images = from_arrays("chars74k", pixels[: len(labels)], labels)
    return CHARS74K.checked(origin, {"all": images}).parts["all"]


def _downloaded(kind: str, name: str, **options):  # type: ignore[no-untyped-def] # noqa: ANN003, ANN202 - torchvision has no types
    from torchvision import datasets  # noqa: PLC0415 - slow: it brings torch's compiler

    options.setdefault("download", True)
    try:
        return getattr(datasets, kind)(**options)
    except (OSError, RuntimeError) as error:
        raise DatasetError(
            f"{name} cannot be read or fetched ({error}). Put its official files below "
            f"{options['root']}."
        ) from error


def both(official: Official) -> LabelledImages:
    """Return all parts, concatenated."""
    return joined(*official.parts.values())


def tiles(path: Path, side: int) -> Pixels:
    """Return the square images (N, side, side, 3) of a mosaic file, row by row."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    grid = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid.reshape(-1, side, side, 3))


OMNIGLOT = Publication(
    "Omniglot",
    "omniglot",
    "images_background and images_evaluation: each is a folder with "
    "<alphabet>/character<NN>/*.png, or a .zip or .tar.xz file of this folder",
    "https://github.com/brendenlake/omniglot",
    {"background": (19_280, 964), "evaluation": (13_180, 659)},
)
_ARCHIVES = (".zip", ".tar.xz", ".tar.gz", ".tar")


def omniglot(origin: Origin) -> Official:
    """Load Omniglot: parts ``background`` (training) and ``evaluation``, with different characters.

    A label is "<alphabet>/character<NN>".

    Raises
    ------
    DatasetError
    """
    parts = {part: _part(origin, f"images_{part}") for part in ("background", "evaluation")}
    return OMNIGLOT.checked(origin, parts)


def _part(origin: Origin, name: str) -> LabelledImages:
    folder = origin.root / OMNIGLOT.folder
    found = [folder / name] if (folder / name).is_dir() else []
    found += [folder / f"{name}{suffix}" for suffix in _ARCHIVES]
    place = next((path for path in found if path.exists()), None)
    if place is None:
        raise DatasetError(f"Omniglot: {folder / name} is missing. {OMNIGLOT.how_to_get(origin)}")
    try:
        files = dict(sorted(_files(place)))
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{place} cannot be read ({error}). Fetch it again.") from error
    names, contents = list(files), list(files.values())

    def read(row: int, _smallest_side: int | None) -> Pixels:
        with Image.open(io.BytesIO(contents[row])) as image:
            return np.asarray(image.convert("RGB"))

    def content(row: int) -> bytes:
        return hashlib.sha256(contents[row]).digest()

    labels = tuple("/".join(name.split("/")[:2]) for name in names)
    return LabelledImages(tuple(names), labels, read, np.arange(len(names)), content=content)


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name "<alphabet>/character<NN>/<drawing>.png" and the content of each drawing."""
    if place.is_dir():
        for path in place.rglob("*.png"):
            yield path.relative_to(place).as_posix(), path.read_bytes()
    elif place.suffix == ".zip":
        with zipfile.ZipFile(place) as archive:
            for entry in archive.namelist():
                if entry.endswith(".png"):
                    yield _below_root(entry), archive.read(entry)
    else:
        with tarfile.open(place) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(".png") else None
                if file is not None:
                    yield _below_root(member.name), file.read()


def _below_root(entry: str) -> str:
    return "/".join(PurePosixPath(entry).parts[-3:])
