"""Loaders of the protocols' data: images for training, the development task, the test, outliers.

In closed-set protocols, all labels of the test also occur in training. In open-set protocols, no
label of the test occurs in training. Small protocols compare objectives; their training takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.datasets.small_images import digits
from index_builder.datasets.splits import stratified, with_label
from index_builder.reproduction.data_sets import (
    Official,
    Origin,
    chars74k,
    cifar10,
    mnist_like,
    omniglot,
    svhn,
)
from index_builder.reproduction.photographs import (
    caltech101,
    cars,
    coordinates,
    cub,
    in_shop,
    lfw,
    msls,
    stanford_online_products,
)
from index_builder.reproduction.protocols.protocol import (
    QUERY_SHARE,
    Loading,
    Outliers,
    ProtocolData,
    Task,
    all_against_all,
    held_out_task,
    photographs,
    without_some_labels,
)

HELD_OUT = 1 / 12
"""Share of the training images that are held out for calibration: 5,000 of 60,000."""

SMALL = 1 / 10
"""Share of the Fashion-MNIST images that the small protocol uses."""

HELD_OUT_GALLERY = 12_500
"""Number of held-out images in the authors' setting; 10,000 of these form the gallery, as in the
test."""

WITHHELD_DIGITS = frozenset({"3", "8"})
"""Digits of scikit-learn's data set that are in no gallery; they are near outliers."""


HELD_OUT_LABELS = 0.2
"""Share of the training labels that open-set protocols hold out for the development task."""

N_OUTLIERS = 250
"""Number of outliers of each kind in small protocols. With so many outliers, two digits of an AUROC
are significant."""

N_CLOTHES, N_CLOTHES_ASKED = 1000, 500
"""Number of Fashion-MNIST images for training and for the gallery, and number of queries."""

CHARACTERS, CHARACTERS_ASKED = 80, 40
"""Number of Omniglot characters for training and calibration, and number of other characters for
the test. A character has 20 drawings."""

CATEGORIES_ASKED = 0.3
"""Share of the categories of Caltech-101 that are in the test."""

VALIDATION_SHARE = 0.1
"""Share of the images that small protocols use for validation. Larger protocols use 2 % of the
images for validation. Here, 2 % would be only a dozen images."""


def _closed_set(
    loading: Loading,
    learning: LabelledImages,
    queries: LabelledImages,
    test_outliers: Mapping[str, Outliers],
    partial: Mapping[str, str] = MappingProxyType({}),
    held_out: float = HELD_OUT,
) -> ProtocolData:
    """Return the data: the gallery is all training images except the development queries."""
    gallery, development = stratified(learning, 1 - held_out, loading.generator)
    development_task, test = Task(development, gallery), Task(queries, gallery)
    return _divided(loading, gallery, lambda: development_task, test, test_outliers, partial)


def _open_set(
    loading: Loading,
    found: Official,
    learning: LabelledImages,
    test: Task,
    test_outliers: Mapping[str, Outliers],
    held_out: float = HELD_OUT_LABELS,
    query_share: float = QUERY_SHARE,
) -> ProtocolData:
    """Return the data: a share of the training labels is held out for the development task."""
    kept, development = without_some_labels(learning, held_out, loading.generator)
    task = partial(held_out_task, development, loading.generator, query_share)
    return _divided(loading, kept, task, test, test_outliers, found.partial)


def _divided(
    loading: Loading,
    kept: LabelledImages,
    development: Callable[[], Task],
    test: Task,
    test_outliers: Mapping[str, Outliers],
    partial: Mapping[str, str] = MappingProxyType({}),
) -> ProtocolData:
    """Divide ``kept`` into training and validation images, and add crops as outliers."""
    share, generator = loading.validation_share, loading.generator
    training, validation = stratified(kept, 1 - share, generator, at_least_one_left=share > 0)
    task, crops = development(), photographs(0, generator)
    crops = crops if loading.n_outliers is None else crops.at(range(loading.n_outliers))
    return ProtocolData(training, validation, task, crops, test, test_outliers, partial)


def _small(loading: Loading) -> Loading:
    return replace(loading, validation_share=VALIDATION_SHARE, n_outliers=N_OUTLIERS)


def _fashion_mnist(
    loading: Loading,
) -> tuple[LabelledImages, LabelledImages, LabelledImages]:
    """Return training images and test images of Fashion-MNIST, and test images of MNIST."""
    clothes, digits = (mnist_like(name, loading.origin) for name in ("FashionMNIST", "MNIST"))
    return clothes.parts["train"], clothes.parts["test"], digits.parts["test"]


def _mnist(digits: LabelledImages) -> dict[str, Outliers]:
    return {"MNIST": Outliers(digits, "far")}


def load_fashion_mnist(loading: Loading) -> ProtocolData:
    """Fashion-MNIST: queries are test images, the gallery is training images.

    MNIST images are outliers.
    """
    learning, queries, digits = _fashion_mnist(loading)
    return _closed_set(loading, learning, queries, _mnist(digits))


def load_fashion_mnist_small(loading: Loading) -> ProtocolData:
    """A tenth of Fashion-MNIST; the outliers are a tenth of MNIST.

    All seeds use the same images.
    """
    learning, queries, digits = (
        stratified(images, SMALL, np.random.default_rng(0))[0] for images in _fashion_mnist(loading)
    )
    return _closed_set(loading, learning, queries, _mnist(digits), held_out=1 / 6)


def load_fashion_mnist_tiny(loading: Loading) -> ProtocolData:
    """A part of Fashion-MNIST: 500 queries and 1,000 training images; MNIST images are outliers.

    All seeds use the same images. The seed chooses which 250 of the 1,000 training images are for
    calibration.
    """
    *clothes, digits = _fashion_mnist(loading)
    learning, queries = (
        stratified(images, n / len(images), np.random.default_rng(0))[0]
        for images, n in zip(clothes, (N_CLOTHES, N_CLOTHES_ASKED), strict=True)
    )
    outliers = _mnist(_drawn(digits, N_OUTLIERS))
    return _closed_set(_small(loading), learning, queries, outliers, held_out=1 / 4)


def load_fashion_mnist_authors(loading: Loading) -> ProtocolData:
    """Fashion-MNIST as in the code of the Laplace paper: test images are queries and gallery."""
    learning, queries, digits = _fashion_mnist(loading)
    share = 1 - HELD_OUT_GALLERY / len(learning)
    kept, held_out = stratified(learning, share, loading.generator)
    development = partial(held_out_task, held_out, loading.generator)
    return _divided(loading, kept, development, all_against_all(queries), _mnist(digits))


def load_cifar10(loading: Loading) -> ProtocolData:
    """CIFAR-10: queries are test images, the gallery is training images.

    SVHN or Chars74K images are outliers.
    """
    found, numbers = cifar10(loading.origin), svhn(loading.origin)
    test_outliers = (
        {"SVHN": Outliers(numbers, "far")}
        if numbers is not None
        else {"Chars74K (in place of SVHN)": Outliers(chars74k(loading.origin), "far")}
    )
    parts = found.parts
    return _closed_set(loading, parts["train"], parts["test"], test_outliers, found.partial)


def load_digits(loading: Loading) -> ProtocolData:
    """The digits of scikit-learn; 3 and 8 are near outliers. The protocol takes seconds.

    All seeds have the same test images, as in a published split. The members of an ensemble have
    different seeds, but need the same test images.
    """
    everyone = digits()
    known = everyone.at(with_label(everyone, WITHHELD_DIGITS, wanted=False))
    withheld = everyone.at(with_label(everyone, WITHHELD_DIGITS, wanted=True))
    learning, queries = stratified(known, 0.75, np.random.default_rng(0))
    test_outliers = _photographs(loading) | {"3 and 8": Outliers(withheld, "near")}
    return _closed_set(loading, learning, queries, test_outliers, held_out=1 / 3)


def load_omniglot(loading: Loading) -> ProtocolData:
    """Omniglot: background alphabets for training; evaluation drawings are queries and gallery.

    Near outliers are the digits of MNIST. The digits are inverted, so that they have dark strokes
    on a bright background, as in Omniglot.
    """
    found = omniglot(loading.origin)
    test = all_against_all(found.parts["evaluation"])
    _, clothes, digits = _fashion_mnist(loading)
    unrelated = _beside_characters(digits, clothes)
    return _open_set(loading, found, found.parts["background"], test, unrelated)


def load_omniglot_small(loading: Loading) -> ProtocolData:
    """Omniglot: 60 characters for training, 20 for calibration, and 40 others for the test."""
    found = omniglot(loading.origin)
    learning, asked = (
        found.parts[part].at(
            with_label(found.parts[part], _names(found.parts[part], n), wanted=True)
        )
        for part, n in (("background", CHARACTERS), ("evaluation", CHARACTERS_ASKED))
    )
    _, clothes, digits = (_drawn(images, N_OUTLIERS) for images in _fashion_mnist(loading))
    test, unrelated = all_against_all(asked), _beside_characters(digits, clothes)
    return _open_set(_small(loading), found, learning, test, unrelated, 1 / 4, 1 / 2)


def _beside_characters(digits: LabelledImages, clothes: LabelledImages) -> dict[str, Outliers]:
    return {
        "MNIST, inverted": Outliers(inverted(digits), "near"),
        "Fashion-MNIST": Outliers(clothes, "far"),
    }


def inverted(images: LabelledImages) -> LabelledImages:
    """Return the images with inverted brightness: 255 minus each value."""

    def read(position: int, smallest_side: int | None) -> Pixels:
        return 255 - images.pixels(position, smallest_side)

    return replace(images, read=read, rows=np.arange(len(images)))


def load_caltech(loading: Loading) -> ProtocolData:
    """Caltech-101: 50 % of the categories for training, 20 % for calibration, 30 % for the test.

    The outliers are characters in natural scenes (Chars74K).
    """
    found = caltech101(loading.origin)
    images = found.parts["all"]
    asked = _names(images, round(CATEGORIES_ASKED * len(set(images.labels))))
    learning = images.at(with_label(images, asked, wanted=False))
    test = all_against_all(images.at(with_label(images, asked, wanted=True)))
    unrelated = {"Chars74K": Outliers(_drawn(chars74k(loading.origin), N_OUTLIERS), "far")}
    return _open_set(_small(loading), found, learning, test, unrelated, 2 / 7, 1 / 2)


def load_in_shop(loading: Loading) -> ProtocolData:
    """In-Shop: the official queries and the official gallery."""
    found = in_shop(loading.origin)
    test = Task(found.parts["query"], found.parts["gallery"])
    return _open_set(loading, found, found.parts["train"], test, _photographs(loading))


def load_msls(loading: Loading) -> ProtocolData:
    """MSLS: the validation cities have queries and gallery; a match is within 25 m of a query."""
    places = msls(loading.origin)
    parts = places.official.parts

    def positions(images: LabelledImages) -> np.ndarray:
        return coordinates(images, places.positions)

    task = Task(parts["query"], parts["database"], positions=positions)
    has = np.flatnonzero(task.n_relevant() > 0)
    test = replace(task, queries=parts["query"].at(has))
    return _open_set(loading, places.official, parts["train"], test, _photographs(loading))


def _halves(
    reader: Callable[[Origin], Official],
    unrelated: Mapping[str, Callable[[Origin], Official]],
    loading: Loading,
) -> ProtocolData:
    """Return the data: part ``train`` for training, part ``test`` for queries and gallery."""
    found = reader(loading.origin)
    others = {name: other(loading.origin) for name, other in unrelated.items()}
    test_outliers = {name: Outliers(one.parts["test"], "far") for name, one in others.items()}
    for one in others.values():
        found = replace(found, partial={**found.partial, **one.partial})
    test = all_against_all(found.parts["test"])
    unlike = test_outliers or _photographs(loading)
    return _open_set(loading, found, found.parts["train"], test, unlike)


load_cub = partial(_halves, cub, {"Cars-196": cars})
"""CUB-200-2011: the last 100 classes are queries and gallery; Cars-196 has the outliers."""

load_cars = partial(_halves, cars, {"CUB-200-2011": cub})
"""Cars-196: the last 98 classes are queries and gallery; CUB-200-2011 has the outliers."""

load_lfw = partial(_halves, lfw, {"CUB-200-2011": cub})
"""LFW: images of the test people are queries and gallery; CUB-200-2011 has the outliers."""

load_stanford_online_products = partial(_halves, stanford_online_products, {})
"""Stanford Online Products: the images of the test products are queries and gallery."""


def _photographs(loading: Loading) -> dict[str, Outliers]:
    """Return crops of a photograph as outliers, for data sets whose papers have no outliers.

    Calibration does not use these crops.
    """
    return {"photographs": Outliers(photographs(1, loading.generator), "far")}


def _names(images: LabelledImages, n: int) -> frozenset[str]:
    """Draw ``n`` labels with a fixed seed."""
    names = np.random.default_rng(0).permutation(sorted(set(images.labels)))
    return frozenset(names[:n].tolist())


def _drawn(images: LabelledImages, n: int) -> LabelledImages:
    """Draw ``n`` images with a fixed seed."""
    return images.at(np.sort(np.random.default_rng(0).permutation(len(images))[:n]))
