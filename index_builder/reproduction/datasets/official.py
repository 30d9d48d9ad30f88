"""The parts that all readers of published data sets share: place and completeness of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from index_builder.datasets.images import LabelledImages
from model_store.errors import DatasetError

MAX_NAMED = 3
"""Missing files that an error names."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of data sets.

    Attributes
    ----------
    root : the folder that they lie in, each in a separate one.
    allow_partial : take less than was published.
    download : fetch what is missing, where torchvision can.
    """

    root: Path
    allow_partial: bool = False
    download: bool = False


@dataclass(frozen=True, slots=True)
class Official:
    """A data set as its authors divide it.

    Attributes
    ----------
    parts : images by the name of the part.
    partial : what is not as published: part → "found … of …"; empty where all is there.
    """

    parts: Mapping[str, LabelledImages]
    partial: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Publication:
    """A published data set.

    Attributes
    ----------
    name : for people.
    folder : its folder, below `Origin.root`.
    layout : what the folder holds, in words.
    url : where to get it.
    counts : images and labels of each part.
    """

    name: str
    folder: str
    layout: str
    url: str
    counts: Mapping[str, tuple[int, int]]

    def require(self, origin: Origin, relative: str) -> Path:
        """A file or folder of the data set.

        Raises
        ------
        DatasetError : it is missing; the message names it and its origin.
        """
        path = origin.root / self.folder / relative
        if not path.exists():
            raise DatasetError(f"{self.name}: {path} is missing. {self.how_to_get(origin)}")
        return path

    def how_to_get(self, origin: Origin) -> str:
        """Return the part of an error message that says which files to put where."""
        return f"Wanted in {origin.root / self.folder}: {self.layout}. Get it from {self.url}."

    def checked(self, origin: Origin, parts: Mapping[str, LabelledImages]) -> Official:
        """The data set, once images and labels of each part are as many as were published.

        Raises
        ------
        DatasetError : they are not, and `Origin.allow_partial` is not set; or a part is empty.
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
                f"{self.name} is not as published ({lines}). {self.how_to_get(origin)} To do with "
                "the present images, set dataset.allow_partial (--allow-partial); the report says "
                "so."
            )
        return Official(parts, {f"{self.name}, {part}": line for part, line in partial.items()})

    def existing(
        self, origin: Origin, folder: str, names: list[str], label_of: Callable[[str], str]
    ) -> tuple[list[str], list[str]]:
        """Names and labels of the images that are there.

        Raises
        ------
        DatasetError : some are not, and `Origin.allow_partial` is not set.
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
