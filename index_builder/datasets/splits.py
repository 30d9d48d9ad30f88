"""The division of images into training, gallery, calibration and evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index_builder.configuration.build import BuildConfig, DatasetConfig, OutlierConfig
from index_builder.datasets.corruption import views
from index_builder.datasets.folder import folder
from index_builder.datasets.groups import held_out_groups
from index_builder.datasets.images import LabelledImages, joined
from index_builder.datasets.small_images import digits, idx_dataset, outliers
from model_store.errors import DatasetError

N_VALIDATION_VIEWS = 1000
"""Maximum number of validation views in a build without labels. The prior precision is chosen on
the validation views."""

MIN_SPLIT = 3
"""If a label has at least this number of images, one image is held out, unless the label's groups
are too large. If the label has three images, the other two form a positive pair."""


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries for calibration or evaluation.

    Attributes
    ----------
    matched : held-out images whose label is in the gallery.
    withheld : images of labels that are in neither training nor gallery; may be empty.
    outliers : far-OOD images; None if no such images are used.
    """

    matched: LabelledImages
    withheld: LabelledImages
    outliers: LabelledImages | None


@dataclass(frozen=True, slots=True)
class Splits:
    """All images of a build.

    Attributes
    ----------
    gallery : the indexed images. Without `unseen_share`, the training and validation images are
        indexed. With `unseen_share`, images of labels that the encoder is not trained on are
        indexed.
    training : images for training the encoder and fitting its posterior. Without labels, one half
        of the gallery is for training; the calibration queries are views of the other half.
    validation : images for the choice of the prior precision; the encoder is not trained on them.
    calibration : queries for the calibration. Without labels, these queries are views of items.
        Otherwise, these queries are not in any other part of the data.
    evaluation : queries for the evaluation, chosen like ``calibration``.
    labelled : whether labels are known. Without known labels, each image is its own label.
    items_are_queries : whether the items are also the queries with a match. Each item is then
        excluded from its own results, and ``calibration`` and ``evaluation`` have no queries with a
        match.
    gallery_unseen : True if the encoder was trained on other images with other labels. The items
        are then as new to the encoder as the queries.
    """

    gallery: LabelledImages
    training: LabelledImages
    validation: LabelledImages
    calibration: QuerySet
    evaluation: QuerySet
    labelled: bool = True
    gallery_unseen: bool = False
    items_are_queries: bool = False


@dataclass(frozen=True, slots=True)
class SplitChoices:
    """The options of a configuration that determine the splits.

    Attributes
    ----------
    gallery_share : see `BuildConfig.gallery_share`.
    """

    dataset: DatasetConfig
    outliers: OutlierConfig
    seed: int
    gallery_share: float | None

    @classmethod
    def of(cls, config: BuildConfig) -> SplitChoices:
        """Return the options of ``config``."""
        return cls(config.dataset, config.outliers, config.seed, config.gallery_share)


def load_splits(
    config: BuildConfig | SplitChoices, vectors: LabelledImages | None = None
) -> Splits:
    """Load the data of ``config`` and divide the data; equal seeds give equal splits.

    Parameters
    ----------
    vectors : the vectors, if the build uses vectors instead of images; otherwise None.

    Raises
    ------
    DatasetError : data are missing or damaged, a withheld label is unknown, or images are too few.
    """
    generator = np.random.default_rng([config.seed, 0])
    if config.dataset.labels == "none":
        return _of_views(config, generator)
    learning, source, queries = _parts(config.dataset, vectors)
    withheld = set(config.dataset.withheld_labels)
    _require_known(withheld, source)
    spare = source.at([])
    if queries is None and config.gallery_share is None:
        queries = source.at(with_label(source, withheld, wanted=True))
    elif queries is None:
        source, queries = stratified(source, config.gallery_share or 1, generator)
        spare = source.at(with_label(source, withheld, wanted=True))
    gallery = source.at(with_label(source, withheld, wanted=False))
    if len(names := set(gallery.labels)) < 2:
        raise DatasetError(
            f"Labels of the gallery: {', '.join(map(repr, names)) or 'none'}. A build needs two or "
            "more. Labels are the sub-folders of the source, or the column label of a table. If "
            "each image is its own class, use --no-labels."
        )
    halves = stratified(queries, 0.5, generator, keep=False)
    outliers_of = list(_outliers(config, generator))
    share = config.dataset.validation_share
    training, validation = stratified(
        gallery if learning is None else learning,
        1 - share,
        generator,
        at_least_one_left=share > 0,
    )
    # Images of withheld labels are not indexed, so they become queries.
    spares = stratified(spare, 0.5, generator, keep=False)
    calibration, evaluation = (
        QuerySet(
            half.at(with_label(half, withheld, wanted=False)),
            joined(half.at(with_label(half, withheld, wanted=True)), more),
            far,
        )
        for half, more, far in zip(halves, spares, outliers_of, strict=True)
    )
    return Splits(
        gallery,
        training,
        validation,
        calibration,
        evaluation,
        gallery_unseen=learning is not None,
        items_are_queries=not len(calibration.matched) and not len(evaluation.matched),
    )


def _require_known(withheld: set[str], images: LabelledImages) -> None:
    """Raise `DatasetError` if no image has a withheld label."""
    known = set(images.labels)
    if withheld - known:
        raise DatasetError(
            f"dataset.withheld_labels names {', '.join(sorted(withheld - known))}; the labels are "
            f"{', '.join(sorted(known))}."
        )


def _of_views(config: BuildConfig | SplitChoices, generator: np.random.Generator) -> Splits:
    """Divide images without labels; the positives and the queries are views of images.

    One half of the images is for training and evaluation, the other half is for calibration. To
    make a calibration query absent, its original image is hidden, so the query finds only near
    misses. These near misses must be as similar as the near misses of a new photograph. They are as
    similar only if the encoder was not trained on the original image.
    """
    assert config.dataset.path is not None  # noqa: S101 - the configuration has checked it
    gallery = folder(config.dataset.path, labelled=False)
    order = generator.permutation(len(gallery))
    halves = _halves(gallery, order)
    positives, *queries, votes = generator.integers(2**32, size=4).tolist()  # a seed for each
    calibration, evaluation = (
        QuerySet(views(half, seed), half.at([]), far)
        for half, seed, far in zip(halves, queries, _outliers(config, generator), strict=True)
    )
    learned = halves[1]
    return Splits(
        gallery,
        joined(learned, views(learned, positives)),
        views(learned.at(range(min(N_VALIDATION_VIEWS, len(learned)))), votes),
        calibration,
        evaluation,
        labelled=False,
    )


def _halves(images: LabelledImages, order: NDArray[np.int64]) -> list[LabelledImages]:
    """Divide images into two halves, in the random ``order``, without splitting a group."""
    if images.groups is None:
        return [images.at(np.sort(half)) for half in np.array_split(order, 2)]
    alike = np.zeros(len(images), dtype=np.int64)
    second = _second_side(images.groups, alike, order[::-1], 0.5, np.array([len(images) // 2]))
    return [images.at(np.flatnonzero(~second)), images.at(np.flatnonzero(second))]


def _outliers(
    config: BuildConfig | SplitChoices, generator: np.random.Generator
) -> Iterator[LabelledImages | None]:
    """Yield the far-OOD images for calibration, then the far-OOD images for evaluation."""
    most = config.outliers.n_images
    for part, kind in enumerate((config.outliers.calibration, config.outliers.evaluation)):
        images = outliers(kind, part, generator)
        yield images if images is None or most is None else images.at(range(len(images))[:most])


def _parts(
    config: DatasetConfig, vectors: LabelledImages | None
) -> tuple[LabelledImages | None, LabelledImages, LabelledImages | None]:
    """Return the separate training images, the main images, and the separate queries.

    The training images are None if the encoder is trained on the main images. The queries are None
    if the data have no predefined split.
    """
    if config.kind == "fashion-mnist":
        return None, idx_dataset("FashionMNIST", "train"), idx_dataset("FashionMNIST", "t10k")
    if config.kind == "mnist":
        return None, idx_dataset("MNIST", "train"), idx_dataset("MNIST", "t10k")
    if config.kind == "vectors":
        assert vectors is not None  # noqa: S101 - the caller has read them
        source = vectors
    elif config.kind == "folder":
        assert config.path is not None  # noqa: S101 - the configuration has checked it
        source = folder(config.path)
    else:
        source = digits()
    learning = None
    if config.unseen_share:
        names = sorted(set(source.labels))
        n_unseen = round(config.unseen_share * len(names))
        seen = set(names[: len(names) - n_unseen])
        if min(len(seen), n_unseen) < 2:
            raise DatasetError(
                f"unseen_share = {config.unseen_share} divides {len(names)} labels into "
                f"{len(seen)} and {n_unseen}; each side needs two."
            )
        learning = source.at(with_label(source, seen, wanted=True))
        source = source.at(with_label(source, seen, wanted=False))
    return learning, source, None


def stratified(
    images: LabelledImages,
    share: float,
    generator: np.random.Generator,
    *,
    at_least_one_left: bool = False,
    keep: bool = True,
) -> tuple[LabelledImages, LabelledImages]:
    """Divide images at random into two sides; the first side has ``share`` of each label's images.

    Both sides keep the order of the source. No group is divided. So if a label has large groups,
    the first side can get more or less than ``share`` of this label, or even all images of the
    label. Over all labels, the first side has about ``share`` of the images.

    Parameters
    ----------
    at_least_one_left : whether the second side gets at least one image of each label with three or
        more images. The second side gets no image of a label whose groups are too large.
    keep : whether each label keeps an image on the first side. Without groups, this option has no
        effect.
    """
    labels = np.array(images.labels)
    first = np.zeros(len(images), dtype=bool)
    n_second = []
    for label in sorted(set(images.labels)):
        members = generator.permutation(np.flatnonzero(labels == label))
        n_first = round(share * len(members))
        if at_least_one_left and len(members) >= MIN_SPLIT:
            n_first = min(n_first, len(members) - 1)
        first[members[:n_first]] = True
        n_second.append(len(members) - n_first)
    if images.groups is not None and n_second:
        first = ~_second_side(
            images.groups,
            images.label_codes(),
            generator.permutation(len(images)),
            1 - share,
            np.array(n_second),
            keep=keep,
        )
    return images.at(np.flatnonzero(first)), images.at(np.flatnonzero(~first))


def _second_side(
    names: tuple[str, ...],
    labels: NDArray[np.int64],
    order: NDArray[np.int64],
    share: float,
    wanted: NDArray[np.int64],
    *,
    keep: bool = False,
) -> NDArray[np.bool_]:
    """Return a mask (N,) of the images on the second side, see `held_out_groups`.

    Parameters
    ----------
    names : group name of each image.
    order : (N,) images in random order. Groups are visited in the order of their first images.
    """
    groups = np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
    visited, starts = np.unique(groups[order], return_index=True)
    most = np.bincount(labels, minlength=len(wanted)) - keep
    taken = held_out_groups(labels, groups, visited[np.argsort(starts)], share, wanted, most)
    return taken[groups]


def with_label(
    images: LabelledImages, labels: Collection[str], *, wanted: bool
) -> NDArray[np.int64]:
    """Return the positions of the images whose label is in ``labels``.

    If ``wanted`` is False, return the positions of all other images.
    """
    member = np.array([label in labels for label in images.labels], dtype=bool)
    return np.flatnonzero(member == wanted)
