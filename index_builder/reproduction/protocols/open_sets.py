"""Open-set protocols: no label of the test occurs in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.datasets.splits import stratified
from index_builder.reproduction.datasets import Official, Origin
from index_builder.reproduction.datasets.photographs import (
    cars,
    coordinates,
    cub,
    in_shop,
    lfw,
    msls,
    stanford_online_products,
)
from index_builder.reproduction.datasets.small import mnist_like, omniglot
from index_builder.reproduction.protocols.protocol import (
    Outliers,
    ProtocolData,
    Task,
    all_against_all,
    held_out_task,
    photographs,
    without_some_labels,
)

HELD_OUT_LABELS = 0.2
"""Share of the training labels that are held out for the development task."""


def load_omniglot(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """Omniglot: background alphabets for training; evaluation drawings are queries and gallery.

    Near outliers are the digits of MNIST. The digits are inverted, so that they have dark strokes
    on a bright background, as in Omniglot.
    """
    found = omniglot(origin)
    test = all_against_all(found.parts["evaluation"])
    digits, clothes = (mnist_like(name, origin).parts["test"] for name in ("MNIST", "FashionMNIST"))
    unrelated = {
        "MNIST, inverted": Outliers(inverted(digits), "near"),
        "Fashion-MNIST": Outliers(clothes, "far"),
    }
    return _open_set(found, found.parts["background"], test, unrelated, generator, validation_share)


def load_in_shop(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """In-Shop: the official queries and the official gallery."""
    found = in_shop(origin)
    test = Task(found.parts["query"], found.parts["gallery"])
    return _open_set(
        found, found.parts["train"], test, _photographs(generator), generator, validation_share
    )


def load_msls(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """MSLS: the validation cities have queries and gallery; a match is within 25 m of a query."""
    places = msls(origin)
    parts = places.official.parts

    def positions(images: LabelledImages) -> np.ndarray:
        return coordinates(images, places.positions)

    task = Task(parts["query"], parts["database"], positions=positions)
    has = np.flatnonzero(task.n_relevant() > 0)
    test = replace(task, queries=parts["query"].at(has))
    return _open_set(
        places.official,
        parts["train"],
        test,
        _photographs(generator),
        generator,
        validation_share,
    )


def inverted(images: LabelledImages) -> LabelledImages:
    """Return the images with inverted brightness: 255 minus each value."""
    source = images

    def read(position: int, smallest_side: int | None) -> Pixels:
        return 255 - source.pixels(position, smallest_side)

    return replace(images, read=read, rows=np.arange(len(images)))


def _halves(
    reader: Callable[[Origin], Official],
    unrelated: Mapping[str, Callable[[Origin], Official]],
    origin: Origin,
    generator: np.random.Generator,
    validation_share: float,
) -> ProtocolData:
    """Return the data: part ``train`` for training, part ``test`` for queries and gallery."""
    found = reader(origin)
    others = {name: other(origin) for name, other in unrelated.items()}
    test_outliers = {name: Outliers(one.parts["test"], "far") for name, one in others.items()}
    data = _open_set(
        found,
        found.parts["train"],
        all_against_all(found.parts["test"]),
        test_outliers or _photographs(generator),
        generator,
        validation_share,
    )
    partial = dict(found.partial)
    for one in others.values():
        partial |= one.partial
    return replace(data, partial=partial)


load_cub = partial(_halves, cub, {"Cars-196": cars})
"""CUB-200-2011: the last 100 classes are queries and gallery; Cars-196 has the outliers."""

load_cars = partial(_halves, cars, {"CUB-200-2011": cub})
"""Cars-196: the last 98 classes are queries and gallery; CUB-200-2011 has the outliers."""

load_lfw = partial(_halves, lfw, {"CUB-200-2011": cub})
"""LFW: images of the test people are queries and gallery; CUB-200-2011 has the outliers."""

load_stanford_online_products = partial(_halves, stanford_online_products, {})
"""Stanford Online Products: the images of the test products are queries and gallery."""


def _open_set(
    found: Official,
    learning: LabelledImages,
    test: Task,
    test_outliers: Mapping[str, Outliers],
    generator: np.random.Generator,
    validation_share: float,
) -> ProtocolData:
    kept, held_out = without_some_labels(learning, HELD_OUT_LABELS, generator)
    training, validation = stratified(
        kept, 1 - validation_share, generator, at_least_one_left=validation_share > 0
    )
    return ProtocolData(
        training,
        validation,
        held_out_task(held_out, generator),
        photographs(0, generator),
        test,
        test_outliers,
        found.partial,
    )


def _photographs(generator: np.random.Generator) -> dict[str, Outliers]:
    """Return crops of a photograph as outliers, for data sets whose papers have no outliers.

    Calibration does not use these crops.
    """
    return {"photographs": Outliers(photographs(1, generator), "far")}
