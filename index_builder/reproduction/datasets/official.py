"""Find published data sets, and check that they are complete; all readers use this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from index_builder.datasets.images import LabelledImages
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
