"""Writes sample query images into a bundle; users of the page can search with them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index_builder.configuration.build import SampleConfig
from index_builder.datasets import LabelledImages, Splits
from model_store.bundles.manifest import SAMPLES_FOLDER, SampleQuery
from model_store.errors import ConfigError, ImageError
from model_store.images import decode_image

N_MATCHED = 4

_Sample = tuple[NDArray[np.uint8], str, bool]
"""A sample query: its pixels, its caption, and whether the gallery has a true match."""


def write_samples(
    directory: Path, splits: Splits, configured: Sequence[SampleConfig]
) -> tuple[SampleQuery, ...]:
    """Write sample queries into ``directory``.

    If no samples are configured, a few evaluation queries become the samples.

    Raises
    ------
    ConfigError : see `read_samples`.
    """
    chosen = read_samples(configured, splits) if configured else _evaluation_queries(splits)
    folder = directory / SAMPLES_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    samples = []
    for number, (pixels, caption, belongs) in enumerate(chosen, start=1):
        name = f"{number}.png"
        Image.fromarray(pixels).save(folder / name)
        samples.append(SampleQuery(str(number), f"{SAMPLES_FOLDER}/{name}", caption, belongs))
    return tuple(samples)


def read_samples(configured: Sequence[SampleConfig], splits: Splits) -> list[_Sample]:
    """Return the samples of a configuration.

    Raises
    ------
    ConfigError : a file is missing or is not an image, or a label is not in the gallery.
    """
    known = set(splits.gallery.labels)
    samples: list[_Sample] = []
    for number, sample in enumerate(configured, start=1):
        if sample.label is not None and sample.label not in known:
            raise ConfigError(
                f"samples.{number}.label is {sample.label!r}, which is not a label of the gallery. "
                f"Set one of {', '.join(sorted(known))}; or leave `label` out."
            )
        try:
            pixels = decode_image(sample.file.read_bytes()).pixels
        except OSError as error:
            raise ConfigError(
                f"samples.{number}.file cannot be read: {sample.file}: {error.strerror}. "
                "Name an image file."
            ) from error
        except ImageError as error:
            raise ConfigError(f"samples.{number}.file is {sample.file}: {error}") from error
        samples.append((pixels, sample.caption, sample.label is not None))
    return samples


def _evaluation_queries(splits: Splits) -> list[_Sample]:
    """Return a few evaluation queries: some have a match, two have no match."""
    queries = splits.evaluation
    chosen = [
        (queries.matched, position, _caption(label, labelled=splits.labelled), True)
        for label, position in _first_of_each_label(queries.matched)[:N_MATCHED]
    ]
    chosen += [
        (queries.withheld, position, f"{label}: not in the collection", False)
        for label, position in _first_of_each_label(queries.withheld)[:1]
    ]
    if queries.outliers is not None:
        caption = f"{queries.outliers.labels[0]}: another kind of image"
        chosen.append((queries.outliers, 0, caption, False))
    return [
        (images.pixels(position), caption, belongs) for images, position, caption, belongs in chosen
    ]


def _caption(label: str, *, labelled: bool) -> str:
    return f"{label}: a new photo" if labelled else f"a view of {label}"


def _first_of_each_label(images: LabelledImages) -> list[tuple[str, int]]:
    first: dict[str, int] = {}
    for position, label in enumerate(images.labels):
        first.setdefault(label, position)
    return sorted(first.items())
