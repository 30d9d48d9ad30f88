"""The parts of a protocol: training images, queries, gallery, and the rule for true matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.small_images import outliers
from index_builder.datasets.splits import QuerySet, Splits, stratified, with_label
from index_builder.reproduction.data_sets import Origin
from model_store.truth import SameLabel, Truth, Within

Positions = Callable[[LabelledImages], NDArray[np.float64]]
"""Function that returns the positions of N images, (N, 2), in metres."""

MATCH_DISTANCE = 25.0
"""Maximum distance in metres between two images of the same place."""

QUERY_SHARE = 0.2
"""Share of the held-out images that are queries; the rest is the gallery of the development
task."""


@dataclass(frozen=True, slots=True)
class Task:
    """Queries and their gallery.

    Attributes
    ----------
    leave_one_out : whether the queries are items of the gallery. A query is then removed from its
        own result list.
    positions : returns the positions of images; an item within `MATCH_DISTANCE` is a match. If
        None, an item with the same label is a match.
    """

    queries: LabelledImages
    gallery: LabelledImages
    leave_one_out: bool = False
    positions: Positions | None = None

    def own_rows(self) -> NDArray[np.int64] | None:
        """Return each query's row in the gallery, (B,); None if the queries are not items."""
        if not self.leave_one_out:
            return None
        row_of = {name: row for row, name in enumerate(self.gallery.ids)}
        return np.array([row_of[name] for name in self.queries.ids])

    @property
    def truth(self) -> Truth:
        """The true matches of the queries in the gallery."""
        if self.positions is not None:
            places = self.positions(self.queries), self.positions(self.gallery)
            return Within(*places, MATCH_DISTANCE)
        names = [*self.gallery.labels, *self.queries.labels]
        codes = np.unique(np.array(names), return_inverse=True)[1]
        return SameLabel(codes[len(self.gallery) :], codes[: len(self.gallery)])

    def n_relevant(self) -> NDArray[np.int64]:
        """Return the number of true matches of each query in the gallery, (B,)."""
        return self.truth.counts() - self.leave_one_out

    def matches(self, found: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (b, n) of true matches among items ``found`` for queries ``rows`` (b,)."""
        return self.truth.matches(rows, found)


@dataclass(frozen=True, slots=True)
class Outliers:
    """Queries without a match in the gallery.

    Attributes
    ----------
    kind : ``near`` outliers resemble the images of the gallery, ``far`` outliers do not.
    """

    images: LabelledImages
    kind: Literal["near", "far"]


@dataclass(frozen=True, slots=True)
class ProtocolData:
    """All images of a protocol. The test queries are in no other part.

    Attributes
    ----------
    training : images for training the encoder and fitting its posterior.
    validation : images for choosing the prior precision; the encoder is not trained on them.
    development : a task like the test, with images that are held out of training. This task is used
        for fitting the decision layer and for all choices.
    development_outliers : outliers for calibration; the test has other outliers.
    test : the published test.
    test_outliers : the outliers of each kind; the key is the kind's name. The papers report results
        for the first kind.
    partial : the incomplete parts of the data set, see `Official.partial`.
    """

    training: LabelledImages
    validation: LabelledImages
    development: Task
    development_outliers: LabelledImages
    test: Task
    test_outliers: Mapping[str, Outliers]
    partial: Mapping[str, str] = field(default_factory=dict)

    def splits(self) -> Splits:
        """Return the data in the form that the steps of a build require."""
        first = next(iter(self.test_outliers.values())).images
        nothing = self.test.queries.at([])
        return Splits(
            self.test.gallery,
            self.training,
            self.validation,
            QuerySet(self.development.queries, nothing, self.development_outliers),
            QuerySet(self.test.queries, nothing, first),
            gallery_unseen=self.test.gallery is not self.development.gallery,
        )


@dataclass(frozen=True, slots=True)
class Loading:
    """How to read and divide the data of a protocol.

    Attributes
    ----------
    generator : draws the held-out images.
    validation_share : share of each label's training images that are used for validation.
    n_outliers : number of outliers for calibration; None for all.
    """

    origin: Origin
    generator: np.random.Generator
    validation_share: float
    n_outliers: int | None = None


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol: how to load its data, its configuration, and the published results.

    Attributes
    ----------
    title : title for display.
    load : function that reads and divides the data.
    fields : configuration tables of the protocol: network, training, calibration.
    published : the papers' results, method → metric → "mean ± sd".
    notes : differences from the papers, and the origin of the results.
    shared_samples : whether the consensus is computed from sampled last layers, as in the authors'
        code; each sampled last layer is used for all images. If False, the embeddings of each image
        are sampled independently.
    """

    title: str
    load: Callable[[Loading], ProtocolData]
    fields: Mapping[str, Any]
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    shared_samples: bool = False


def all_against_all(images: LabelledImages, positions: Positions | None = None) -> Task:
    """Return a leave-one-out task in which every image with a match is a query."""
    everyone = Task(images, images, leave_one_out=True, positions=positions)
    asking = np.flatnonzero(everyone.n_relevant() > 0)
    return Task(images.at(asking), images, leave_one_out=True, positions=positions)


def held_out_task(
    images: LabelledImages, generator: np.random.Generator, query_share: float = QUERY_SHARE
) -> Task:
    """Divide held-out images into a gallery and queries with the same labels."""
    gallery, queries = stratified(images, 1 - query_share, generator, at_least_one_left=True)
    return Task(queries, gallery)


def photographs(part: int, generator: np.random.Generator) -> LabelledImages:
    """Return crops of a photograph as outliers: part 0 for calibration, part 1 for the test."""
    images = outliers("photographs", part, generator)
    assert images is not None  # noqa: S101 - none only for the kind of that name
    return images


def without_some_labels(
    images: LabelledImages, share: float, generator: np.random.Generator
) -> tuple[LabelledImages, LabelledImages]:
    """Hold out all images of some random labels; return the kept and the held-out images."""
    names = sorted(set(images.labels))
    chosen = set(generator.permutation(names)[: max(2, round(share * len(names)))].tolist())
    return (
        images.at(with_label(images, chosen, wanted=False)),
        images.at(with_label(images, chosen, wanted=True)),
    )
