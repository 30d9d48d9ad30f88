"""Closed-set protocols: all labels of the test also occur in training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.datasets.small_images import digits
from index_builder.datasets.splits import stratified, with_label
from index_builder.reproduction.datasets import Origin
from index_builder.reproduction.datasets.small import chars74k, cifar10, mnist_like, svhn
from index_builder.reproduction.protocols.protocol import (
    Outliers,
    ProtocolData,
    Task,
    all_against_all,
    held_out_task,
    photographs,
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
