"""Readers of published data sets, for files in the layout of the authors.

A reader takes an `Origin` with the folder of the user's data sets. It returns an `Official` with
the official parts of the data set. If data are missing, it raises a `DatasetError` with the
expected number of images and the address of the data. With `Origin.allow_partial`, incomplete data
are accepted, and the result states what is missing.

This module reads the sets of small images: MNIST, Fashion-MNIST, CIFAR-10, SVHN, Chars74K and
Omniglot. `photographs` reads the others.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from PIL import Image

from index_builder.datasets.images import (
    LabelledImages,
    Pixels,
    from_arrays,
    from_encoded,
    joined,
)
from index_builder.datasets.small_images import idx_dataset
from model_store.errors import DatasetError

MAX_NAMED = 3
"""Maximum number of missing files in an error message."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The folder of the data sets, and the handling of missing data.

    Attributes
    ----------
    root : the folder with a sub-folder for each data set.
    allow_partial : whether incomplete data are accepted.
    download : whether to download missing data, if torchvision offers them.
    """

    root: Path
    allow_partial: bool = False
    download: bool = False


@dataclass(frozen=True, slots=True)
class Official:
    """A data set with its official split.

    Attributes
    ----------
    parts : the images of each part; the key is the part's name.
    partial : a text such as "100 of 200 images" for each incomplete part; the key is the part's
        name. The mapping is empty if the data are complete.
    """

    parts: Mapping[str, LabelledImages]
    partial: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Publication:
    """A published data set.

    Attributes
    ----------
    name : name for display.
    folder : sub-folder of `Origin.root`.
    layout : description of the required files.
    url : address of the data set.
    counts : number of images and labels of each part.
    """

    name: str
    folder: str
    layout: str
    url: str
    counts: Mapping[str, tuple[int, int]]

    def require(self, origin: Origin, relative: str) -> Path:
        """Return the path of a file or folder of the data set.

        Raises
        ------
        DatasetError : the path does not exist; the message names the path and the source.
        """
        path = origin.root / self.folder / relative
        if not path.exists():
            raise DatasetError(f"{self.name}: {path} is missing. {self.how_to_get(origin)}")
        return path

    def how_to_get(self, origin: Origin) -> str:
        """Return a text for error messages: the required files, their folder and their address."""
        return f"Required in {origin.root / self.folder}: {self.layout}. Download from {self.url}."

    def checked(self, origin: Origin, parts: Mapping[str, LabelledImages]) -> Official:
        """Check the numbers of images and labels of each part, and return the data set.

        Raises
        ------
        DatasetError : a number differs from the published number and `Origin.allow_partial` is not
            set, or a part is empty.
        """
        partial = {}
        for part, (n_images, n_labels) in self.counts.items():
            found = len(parts[part]), len(set(parts[part].labels))
            if not found[0]:
                raise DatasetError(f"{self.name}: no {part} images. {self.how_to_get(origin)}")
            if found != (n_images, n_labels):
                partial[part] = (
                    f"{found[0]:,} of {n_images:,} images, {found[1]:,} of {n_labels:,} labels"
                )
        if partial and not origin.allow_partial:
            lines = "; ".join(f"{part}: {line}" for part, line in partial.items())
            raise DatasetError(
                f"{self.name} differs from the published data set ({lines}). "
                f"{self.how_to_get(origin)} To use only the images that exist, set "
                "dataset.allow_partial (--allow-partial)."
            )
        return Official(parts, {f"{self.name}, {part}": line for part, line in partial.items()})

    def existing(
        self, origin: Origin, folder: str, names: list[str], label_of: Callable[[str], str]
    ) -> tuple[list[str], list[str]]:
        """Return the names and labels of the images that exist.

        Raises
        ------
        DatasetError : images are missing, and `Origin.allow_partial` is not set.
        """
        root = self.require(origin, folder)
        missing = [name for name in names if not (root / name).is_file()]
        if missing and not origin.allow_partial:
            raise DatasetError(
                f"{self.name}: {len(missing):,} of {len(names):,} images are missing below {root} "
                f"({', '.join(missing[:MAX_NAMED])}, …). {self.how_to_get(origin)}"
            )
        gone = set(missing)
        kept = [name for name in names if name not in gone]
        return kept, [label_of(name) for name in kept]


def rows_of(path: Path, n_columns: int, *, skip: int = 0) -> list[list[str]]:
    """Return the rows of a table with ``n_columns`` columns; the last column may contain blanks.

    Parameters
    ----------
    skip : number of lines before the first row.

    Raises
    ------
    DatasetError : a row has too few columns.
    """
    lines = path.read_text(encoding="utf-8").splitlines()[skip:]
    rows = [line.split(maxsplit=n_columns - 1) for line in lines if line.strip()]
    for number, row in enumerate(rows, start=skip + 1):
        if len(row) != n_columns:
            raise DatasetError(
                f"{path}, line {number}: found {len(row)} columns, wanted {n_columns}. Fetch the "
                "file again."
            )
    return [[word.strip() for word in row] for row in rows]


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
    names, drawings = list(files), list(files.values())
    labels = ["/".join(name.split("/")[:2]) for name in names]
    return from_encoded(names, labels, drawings.__getitem__)


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
