"""The plan of a build: the number of queries, and the error bound that this number can guarantee.

A plan needs only counts. So a build that cannot succeed stops in its first seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from index_builder.calibration.fit import MIN_QUERIES
from index_builder.calibration.item_queries import MOST_QUERIES, group_numbers, partnered
from index_builder.calibration.retrieval import Integers, hideable
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import Splits
from index_builder.progress import console
from model_store.decision.calibration import DEFAULT_ABSENT
from model_store.decision.operating import MOST_ADVISED, Stream, first_where
from model_store.errors import DatasetError

_PRESENT = np.array([True, False])
_BOTH = np.array([True, True])


@dataclass(frozen=True)
class Plan:
    """The counts of a build.

    Attributes
    ----------
    n_images : number of images in the source, including images of withheld labels.
    n_labels : number of labels in the source, including withheld labels.
    n_gallery : number of items in the gallery.
    n_gallery_labels : number of labels in the gallery.
    is_labelled : whether there are labels; otherwise each image is its own class.
    items_are_queries : whether the items are the queries; each item is compared with the rest of
        the gallery.
    n_matched : numbers of queries with a match: for calibration, for evaluation.
    promises : the error bounds of the answers.
    n_withheld : numbers of queries of withheld labels: for calibration, for evaluation.
    n_withheld_labels : number of withheld labels.
    of_vectors : whether the source has vectors. Vectors without labels give no queries, because
        they have no augmented views.
    n_hidden : number of calibration queries with a match that also become queries without a match,
        with their own label hidden; None if this number is not known.
    n_lone : number of labels with one item, if the items are the queries. Photographs of these
        labels count as queries without a match in the bounds, see `Evidence.lone_share`.
    largest_label : the label with the most items of the gallery, and the number of these items.
    is_estimate : whether there may be fewer queries, because unreadable images and near-duplicates
        are found only during the embedding.
    """

    n_images: int
    n_labels: int
    n_gallery: int
    n_gallery_labels: int
    is_labelled: bool
    items_are_queries: bool
    n_matched: tuple[int, int]
    promises: CalibrationConfig
    n_withheld: tuple[int, int] = (0, 0)
    n_withheld_labels: int = 0
    of_vectors: bool = False
    is_estimate: bool = False
    n_hidden: int | None = None
    largest_label: tuple[str, int] = ("", 0)
    n_lone: int = 0

    @classmethod
    def of_splits(
        cls, splits: Splits, promises: CalibrationConfig, *, of_vectors: bool = False
    ) -> Plan:
        """Count the images of a build."""
        calibration, evaluation, gallery = splits.calibration, splits.evaluation, splits.gallery
        withheld = (*calibration.withheld.labels, *evaluation.withheld.labels)
        names, labels = np.unique(np.array(gallery.labels), return_inverse=True)
        largest = names[np.bincount(labels).argmax()].item()
        if splits.items_are_queries:
            of_items = cls.of_items(labels, group_numbers(gallery), largest, promises)
            return replace(
                of_items,
                n_images=len(gallery) + len(withheld),
                n_labels=len({*gallery.labels, *withheld}),
                n_withheld=(len(calibration.withheld), len(evaluation.withheld)),
                n_withheld_labels=len(set(withheld)),
                of_vectors=of_vectors,
            )
        n_matched = len(calibration.matched), len(evaluation.matched)
        counts, n_hidden = np.bincount(labels), None
        if splits.labelled and n_matched[0] and not withheld:
            of_queries = np.searchsorted(names, np.array(calibration.matched.labels))
            n_hidden = int(hideable(counts, len(gallery))[of_queries].sum())
        return cls(
            len(gallery) + (sum(n_matched) if splits.labelled else 0) + len(withheld),
            len({*gallery.labels, *withheld}),
            len(gallery),
            len(names),
            splits.labelled,
            items_are_queries=False,
            n_matched=n_matched,
            n_withheld=(len(calibration.withheld), len(evaluation.withheld)),
            n_withheld_labels=len(set(withheld)),
            promises=promises,
            of_vectors=of_vectors,
            n_hidden=n_hidden,
            largest_label=(largest, int(counts.max())),
        )

    @classmethod
    def of_items(
        cls, labels: Integers, groups: Integers, largest: str, promises: CalibrationConfig
    ) -> Plan:
        """Count the queries if the items of the gallery are the queries.

        Parameters
        ----------
        labels, groups : codes (N,) of the items, see `partnered`.
        largest : the label with the most items.
        """
        counts, is_query = np.bincount(labels[labels >= 0]), partnered(labels, groups)
        n_queries = min(int(is_query.sum()), MOST_QUERIES)
        of_queries = hideable(counts, len(labels))[labels[is_query]]
        n_labels = int((counts > 0).sum())
        return cls(
            len(labels),
            n_labels,
            len(labels),
            n_labels,
            is_labelled=True,
            items_are_queries=True,
            n_matched=(n_queries, 0),
            promises=promises,
            # Of more items, a random sample is queries.
            n_hidden=round(of_queries.mean() * n_queries) if n_queries else None,
            largest_label=(largest, int(counts.max())),
            n_lone=int((counts == 1).sum()),
        )

    @classmethod
    def of_views(cls, n_images: int, promises: CalibrationConfig) -> Plan:
        """Count the queries if augmented views of ``n_images`` items without labels are queries."""
        return cls(
            n_images,
            0,
            n_images,
            0,
            is_labelled=False,
            items_are_queries=False,
            n_matched=(min(n_images, MOST_QUERIES), 0),
            promises=promises,
        )

    @cached_property
    def needed_queries(self) -> int | None:
        """The minimum number of confident queries that guarantees ``max_error``.

        All answers are assumed right, and the labels are those of the plan.

        Returns
        -------
        None if no number of queries is enough: more labels are needed.
        """
        return self._needed(self._best)

    @cached_property
    def needed_labels(self) -> int:
        """The minimum number of labels of queries without a match, for any number of queries."""
        most = replace(self._best, times=MOST_ADVISED)

        def is_enough(n_labels: int) -> bool:
            return self._keeps_error(replace(most, absent_times=n_labels))

        return first_where(is_enough, 0, MOST_ADVISED)

    @cached_property
    def least_error(self) -> float:
        """The smallest error bound of `match` that `n_matched` queries can guarantee."""
        return self._best.multiplied(self.n_matched[0], self._n_absent_labels).error_bound(_PRESENT)

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        of_labels = f" of {self.n_labels:,} labels" if self.is_labelled else ""
        lines = [
            f"{self.n_images:,} images{of_labels}; {self.n_gallery:,} in the gallery",
            f"queries with a match: {self._matched}",
            f"queries without a match: {self._absent}",
        ]
        wanted = f"an error of `match` of at most {100 * self.promises.max_error:g} %"
        return [*lines, f"guarantee: {wanted} needs {self._wants}"]

    @property
    def _wants(self) -> str:
        """What a guarantee needs, and what is missing."""
        n, needed = self.n_matched[0], self.needed_queries
        least = math.ceil(1000 * self.least_error) / 1000
        accept = (
            f", or accept an error of {100 * least:g} % (afterwards, `vouch-build calibrate "
            f"BUNDLES --max-error {least:g}`)"
        ) * (least < 1)
        if needed is None:
            without_lone = self._needed(replace(self._best, lone_share=0.0))
            if without_lone is not None:
                return (
                    f"{without_lone:,} confident queries. With {self.n_lone:,} labels of one "
                    "image, this error cannot be guaranteed: add images of these labels"
                )
            return (
                f"{self.needed_labels:,} labels of queries without a match. With "
                f"{self._n_absent_labels:,}, {self._outcome}: add images of other labels{accept}"
            )
        if needed > n >= MIN_QUERIES:  # or the build is refused
            return f"{needed:,} confident queries. With {n:,}, {self._outcome}: add images{accept}"
        return f"{needed:,} confident queries"

    @property
    def _outcome(self) -> str:
        """What happens to verdicts without a guarantee, if all answers are right."""
        best = self._best.multiplied(self.n_matched[0], self._n_absent_labels)
        if self._keeps_error(best.taking_absent_as_likely()):
            return "no `match` has a guarantee"
        return "the verdict is never `match`"

    @property
    def _n_absent_labels(self) -> int:
        """The number of labels of calibration queries without a match."""
        withheld = self.n_withheld_labels if self.n_withheld[0] else 0
        if withheld and not self.items_are_queries:
            return withheld
        if not self.is_labelled:  # each query is its own label
            return self.n_matched[0]
        return self.n_gallery_labels - self.n_lone + withheld

    @property
    def _best(self) -> Stream:
        """The best case: a query with a right answer, and a query without a match and a verdict.

        `Stream.multiplied` gives the numbers of queries with a match and of labels without one.
        """
        share = self.promises.expected_absent
        return Stream(
            probabilities=_PRESENT.astype(np.float64),
            no_match=(~_PRESENT).astype(np.float64),
            wrong=(~_PRESENT).astype(np.float64),
            counted=_PRESENT,
            labels=np.where(_PRESENT, -1, 0),
            chosen=_BOTH,
            expected=DEFAULT_ABSENT if share is None else share,
            absence_known=True,
            rivals=1.0,
            most_effective=math.inf,
            delta=self.promises.delta,
            lone_share=self.n_lone / max(self.n_gallery, 1),
        )

    def _needed(self, best: Stream) -> int | None:
        """Return the number of queries that guarantees ``max_error`` in the best case."""

        def is_enough(n: int) -> bool:
            n_labels = self._n_absent_labels if self.is_labelled else n
            return self._keeps_error(best.multiplied(n, n_labels))

        needed = first_where(is_enough, 1, MOST_ADVISED)
        return needed if needed < MOST_ADVISED else None

    def _keeps_error(self, best: Stream) -> bool:
        return best.keeps_error(_PRESENT, self.promises.max_error)

    def show(self) -> None:
        """Print the plan."""
        for line in self.lines():
            console.print(line, highlight=False, soft_wrap=True)

    def report(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return {
            "n_images": self.n_images,
            "n_labels": self.n_labels if self.is_labelled else None,
            "n_items": self.n_gallery,
            "n_queries": sum(self.n_matched),
            "n_calibration_queries": self.n_matched[0],
            "n_withheld_queries": sum(self.n_withheld),
            "max_error": self.promises.max_error,
            "n_needed_queries": self.needed_queries,
            "least_error": self.least_error,
        }

    def require_feasible(self) -> None:
        """Check that a calibration is possible.

        Raises
        ------
        DatasetError
        """
        advice = "Add vectors" if self.of_vectors else "Add images"
        without = "; or, if each image is its own class, use --no-labels"
        if self.of_vectors or not self.is_labelled:
            without = ""
        if self.is_labelled and self.n_gallery_labels < 2:
            place = "Put images of each label into a separate sub-folder"
            if self.of_vectors:
                place = "Add vectors of other labels"
            raise DatasetError(
                f"The gallery has {self.n_gallery_labels} label; at least two are needed to tell a "
                f"match from a non-match. {place}{without}."
            )
        if self.n_matched[0] < MIN_QUERIES:
            cause = ""
            if self.items_are_queries:
                cause = ", not counting copies and labels with one image"
            raise DatasetError(
                f"There are {self.n_matched[0]} queries to calibrate with{cause}; at least "
                f"{MIN_QUERIES} are needed. {advice}{without}."
            )
        n_absent = self.n_withheld[0] + (self.n_hidden or 0)
        if self.n_hidden is not None and n_absent < MIN_QUERIES:
            label, n_items = self.largest_label
            raise DatasetError(
                f"There are {n_absent} calibration queries without a match; at least {MIN_QUERIES} "
                f"are needed. The cause is the label {label!r}, which has {n_items:,} of the "
                f"{self.n_gallery:,} items: queries without a match have their own label hidden, "
                f"and without this label, too few items remain. {advice} of other labels, or leave "
                f"out some of {label!r}."
            )

    @property
    def _matched(self) -> str:
        calibration, evaluation = self.n_matched
        if self.items_are_queries:
            about = "about " * self.is_estimate
            return f"{about}{calibration:,} items, each compared with the rest of the gallery"
        kind = "held-out images" if self.is_labelled else "augmented views of items"
        return f"{self._halves(calibration, evaluation)} ({kind})"

    @staticmethod
    def _halves(calibration: int, evaluation: int) -> str:
        to_evaluate = f", {evaluation:,} to evaluate" if evaluation else ""
        return f"{calibration:,} to calibrate{to_evaluate}"

    @property
    def _absent(self) -> str:
        calibration, evaluation = self.n_withheld
        withheld = ""
        if calibration or evaluation:
            halves = self._halves(calibration, evaluation)
            withheld = f"{halves}, of {self.n_withheld_labels:,} withheld labels"
        if self.items_are_queries or not withheld:
            hidden = "the same queries with their own label hidden"
            if self.n_hidden is not None and self.n_hidden < self.n_matched[0]:
                hidden = f"{self.n_hidden:,} of the same queries, with their own label hidden"
            if self.n_lone:
                hidden += f", and photographs of the {self.n_lone:,} labels with one image"
            return f"{hidden}; {withheld}" if withheld else hidden
        return withheld
