"""Query images that come with a bundle, for a visitor who has none at hand."""

from __future__ import annotations

import shutil
from pathlib import Path

from PIL import Image

from index_builder.datasets import LabelledImages, Splits
from model_store.bundles.manifest import SAMPLES_FOLDER, SampleQuery

N_MATCHED = 4


def write_samples(directory: Path, splits: Splits) -> tuple[SampleQuery, ...]:
    """Write a few evaluation queries below ``directory``: some that belong, two that do not."""
    queries = splits.evaluation
    chosen = [
        (queries.matched, position, _caption(label, labelled=splits.labelled), True)
        for label, position in _first_of_each_label(queries.matched)[:N_MATCHED]
    ]
    chosen += [
        (queries.withheld, position, f"{label}, which the gallery has none of", False)
        for label, position in _first_of_each_label(queries.withheld)[:1]
    ]
    if queries.outliers is not None:
        caption = f"{queries.outliers.labels[0]}: from another world"
        chosen.append((queries.outliers, 0, caption, False))
    folder = directory / SAMPLES_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    samples = []
    for number, (images, position, caption, belongs) in enumerate(chosen, start=1):
        name = f"{number}.png"
        Image.fromarray(images.pixels(position)).save(folder / name)
        samples.append(SampleQuery(str(number), f"{SAMPLES_FOLDER}/{name}", caption, belongs))
    return tuple(samples)


def _caption(label: str, *, labelled: bool) -> str:
    return f"{label}, an image the gallery does not hold" if labelled else f"a view of {label}"


def _first_of_each_label(images: LabelledImages) -> list[tuple[str, int]]:
    first: dict[str, int] = {}
    for position, label in enumerate(images.labels):
        first.setdefault(label, position)
    return sorted(first.items())
