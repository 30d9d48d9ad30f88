"""Small protocols for comparing objectives; training takes seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import stratified, with_label
from index_builder.reproduction.datasets import Origin
from index_builder.reproduction.datasets.photographs import caltech101
from index_builder.reproduction.datasets.small import chars74k, mnist_like, omniglot
from index_builder.reproduction.protocols.open_sets import inverted
from index_builder.reproduction.protocols.protocol import (
    Outliers,
    ProtocolData,
    Task,
    all_against_all,
    held_out_task,
    photographs,
    without_some_labels,
)

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
        _photographs(generator),
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
    data = _open_set(learning, 1 / 4, all_against_all(asked), unrelated, generator)
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
    data = _open_set(learning, 2 / 7, test, unrelated, generator)
    return replace(data, partial=found.partial)


def _open_set(
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
        _photographs(generator),
        test,
        test_outliers,
    )


def _photographs(generator: np.random.Generator) -> LabelledImages:
    return photographs(0, generator).at(np.arange(N_OUTLIERS))


def _names(images: LabelledImages, n: int) -> frozenset[str]:
    """Draw ``n`` labels with a fixed seed."""
    names = np.random.default_rng(0).permutation(sorted(set(images.labels)))
    return frozenset(names[:n].tolist())


def _drawn(images: LabelledImages, n: int) -> LabelledImages:
    """Draw ``n`` images with a fixed seed."""
    return images.at(np.sort(np.random.default_rng(0).permutation(len(images))[:n]))
