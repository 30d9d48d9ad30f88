"""Loaders of the protocols' data: images for training, the development task, the test, outliers.

In closed-set protocols, all labels of the test also occur in training. In open-set protocols, no
label of the test occurs in training. Small protocols compare objectives; their training takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

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


def load_fashion_mnist(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """Fashion-MNIST: queries are test images, the gallery is training images.

    MNIST images are outliers.
    """
    parts = mnist_like("FashionMNIST", origin).parts
    test_outliers = {"MNIST": Outliers(mnist_like("MNIST", origin).parts["test"], "far")}
    return _in_training(parts["train"], parts["test"], test_outliers, generator, validation_share)


def load_fashion_mnist_small(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """A tenth of Fashion-MNIST; the outliers are a tenth of MNIST.

    All seeds use the same images.
    """
    parts = mnist_like("FashionMNIST", origin).parts
    outside = mnist_like("MNIST", origin).parts["test"]
    some = {
        name: stratified(images, SMALL, np.random.default_rng(0))[0]
        for name, images in {**parts, "outside": outside}.items()
    }
    return _in_training(
        some["train"],
        some["test"],
        {"MNIST": Outliers(some["outside"], "far")},
        generator,
        validation_share,
        held_out=1 / 6,
    )


def load_fashion_mnist_authors(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """Fashion-MNIST as in the code of the Laplace paper: test images are queries and gallery."""
    parts = mnist_like("FashionMNIST", origin).parts
    test_outliers = {"MNIST": Outliers(mnist_like("MNIST", origin).parts["test"], "far")}
    kept, held_out = stratified(
        parts["train"], 1 - HELD_OUT_GALLERY / len(parts["train"]), generator
    )
    training, validation = stratified(kept, 1 - validation_share, generator)
    return ProtocolData(
        training,
        validation,
        held_out_task(held_out, generator),
        photographs(0, generator),
        all_against_all(parts["test"]),
        test_outliers,
    )


def load_cifar10(
    origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """CIFAR-10: queries are test images, the gallery is training images.

    SVHN or Chars74K images are outliers.
    """
    found = cifar10(origin)
    numbers = svhn(origin)
    test_outliers = (
        {"SVHN": Outliers(numbers, "far")}
        if numbers is not None
        else {"Chars74K (in place of SVHN)": Outliers(chars74k(origin), "far")}
    )
    return _in_training(
        found.parts["train"],
        found.parts["test"],
        test_outliers,
        generator,
        validation_share,
        found.partial,
    )


def load_digits(
    _origin: Origin, generator: np.random.Generator, validation_share: float
) -> ProtocolData:
    """The digits of scikit-learn; 3 and 8 are near outliers. The protocol takes seconds.

    All seeds have the same test images, as in a published split. The members of an ensemble have
    different seeds, but need the same test images.
    """
    everyone = digits()
    known = everyone.at(with_label(everyone, WITHHELD_DIGITS, wanted=False))
    learning, queries = stratified(known, 0.75, np.random.default_rng(0))
    test_outliers = {
        "photographs": Outliers(photographs(1, generator), "far"),
        "3 and 8": Outliers(
            everyone.at(with_label(everyone, WITHHELD_DIGITS, wanted=True)), "near"
        ),
    }
    return _in_training(
        learning, queries, test_outliers, generator, validation_share, held_out=1 / 3
    )


def _in_training(
    learning: LabelledImages,
    queries: LabelledImages,
    test_outliers: Mapping[str, Outliers],
    generator: np.random.Generator,
    validation_share: float,
    partial: Mapping[str, str] | None = None,
    held_out: float = HELD_OUT,
) -> ProtocolData:
    """Return the data: the gallery is all training images except the development queries."""
    gallery, development = stratified(learning, 1 - held_out, generator)
    training, validation = stratified(gallery, 1 - validation_share, generator)
    return ProtocolData(
        training,
        validation,
        Task(development, gallery),
        photographs(0, generator),
        Task(queries, gallery),
        test_outliers,
        partial or {},
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


N_OUTLIERS = 250
"""Number of outliers of each kind. With so many outliers, two digits of an AUROC are
significant."""

N_CLOTHES, N_CLOTHES_ASKED = 1000, 500
"""Number of Fashion-MNIST images for training and for the gallery, and number of queries."""

CHARACTERS, CHARACTERS_ASKED = 80, 40
"""Number of Omniglot characters for training and calibration, and number of other characters for
the test. A character has 20 drawings."""

CATEGORIES_ASKED = 0.3
"""Share of the categories of Caltech-101 that are in the test."""

VALIDATION_SHARE = 0.1
"""Share of the images that are used for validation. Larger protocols use 2 % of the images for
validation. Here, 2 % would be only a dozen images."""


def load_fashion_mnist_tiny(
    origin: Origin, generator: np.random.Generator, _validation_share: float
) -> ProtocolData:
    """A part of Fashion-MNIST: 500 queries and 1,000 training images; MNIST images are outliers.

    All seeds use the same images. The seed chooses which 250 of the 1,000 training images are for
    calibration.
    """
    parts = mnist_like("FashionMNIST", origin).parts
    learning, asking = (
        stratified(parts[part], n / len(parts[part]), np.random.default_rng(0))[0]
        for part, n in (("train", N_CLOTHES), ("test", N_CLOTHES_ASKED))
    )
    gallery, development = stratified(learning, 3 / 4, generator)
    training, validation = stratified(gallery, 1 - VALIDATION_SHARE, generator)
    digits = mnist_like("MNIST", origin).parts["test"]
    return ProtocolData(
        training,
        validation,
        Task(development, gallery),
        _few_photographs(generator),
        Task(asking, gallery),
        {"MNIST": Outliers(_drawn(digits, N_OUTLIERS), "far")},
    )


def load_omniglot_small(
    origin: Origin, generator: np.random.Generator, _validation_share: float
) -> ProtocolData:
    """Omniglot: 60 characters for training, 20 for calibration, and 40 others for the test."""
    found = omniglot(origin)
    learning, asked = (
        found.parts[part].at(
            with_label(found.parts[part], _names(found.parts[part], n), wanted=True)
        )
        for part, n in (("background", CHARACTERS), ("evaluation", CHARACTERS_ASKED))
    )
    digits, clothes = (mnist_like(name, origin).parts["test"] for name in ("MNIST", "FashionMNIST"))
    unrelated = {
        "MNIST, inverted": Outliers(inverted(_drawn(digits, N_OUTLIERS)), "near"),
        "Fashion-MNIST": Outliers(_drawn(clothes, N_OUTLIERS), "far"),
    }
    data = _small_open_set(learning, 1 / 4, all_against_all(asked), unrelated, generator)
    return replace(data, partial=found.partial)


def load_caltech(
    origin: Origin, generator: np.random.Generator, _validation_share: float
) -> ProtocolData:
    """Caltech-101: 50 % of the categories for training, 20 % for calibration, 30 % for the test.

    The outliers are characters in natural scenes (Chars74K).
    """
    found = caltech101(origin)
    images = found.parts["all"]
    asked = _names(images, round(CATEGORIES_ASKED * len(set(images.labels))))
    learning = images.at(with_label(images, asked, wanted=False))
    test = all_against_all(images.at(with_label(images, asked, wanted=True)))
    unrelated = {"Chars74K": Outliers(_drawn(chars74k(origin), N_OUTLIERS), "far")}
    data = _small_open_set(learning, 2 / 7, test, unrelated, generator)
    return replace(data, partial=found.partial)


def _small_open_set(
    learning: LabelledImages,
    held_out: float,
    test: Task,
    test_outliers: dict[str, Outliers],
    generator: np.random.Generator,
) -> ProtocolData:
    """Hold out a share of the labels for calibration; half of the held-out images are queries."""
    kept, development = without_some_labels(learning, held_out, generator)
    training, validation = stratified(kept, 1 - VALIDATION_SHARE, generator)
    return ProtocolData(
        training,
        validation,
        held_out_task(development, generator, 1 / 2),
        _few_photographs(generator),
        test,
        test_outliers,
    )


def _few_photographs(generator: np.random.Generator) -> LabelledImages:
    return photographs(0, generator).at(np.arange(N_OUTLIERS))


def _names(images: LabelledImages, n: int) -> frozenset[str]:
    """Draw ``n`` labels with a fixed seed."""
    names = np.random.default_rng(0).permutation(sorted(set(images.labels)))
    return frozenset(names[:n].tolist())


def _drawn(images: LabelledImages, n: int) -> LabelledImages:
    """Draw ``n`` images with a fixed seed."""
    return images.at(np.sort(np.random.default_rng(0).permutation(len(images))[:n]))
