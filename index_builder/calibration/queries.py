"""The queries of a calibration, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.retrieval import RetrievedQueries
from model_store.decision import Absence

Integers = NDArray[np.int64]
Names = tuple[str, ...]

LEAST_LABELS = 10
"""Minimum number of withheld labels. If fewer labels are withheld, each matched query is also used
as an absent query, and the label of this query is hidden. In a gallery with few labels, hidden
labels are easier to detect than truly new labels."""


Kind: TypeAlias = Literal["matched", "items", "hidden", "withheld", "hidden_items"]
"""The kinds of queries, in the order of the evidence.

matched : the queries of the calibration whose label is in the gallery.
items : gallery images as additional queries; each image and its group are hidden from the image's
    results. The models that give the results must not be fitted to these images: a model gives
    better results for images that it was fitted to than for held-out queries. Their outlier scores
    are not exchangeable with outlier scores of new queries.
hidden, hidden_items : queries of ``matched`` or ``items`` with hidden labels.
withheld : queries whose label the gallery does not have.
"""

Origin: TypeAlias = Literal["held_out_images", "views_of_items", "left_out_items", "captions"]
"""The origin of the matched queries, for the report.

held_out_images : images that are not in the gallery.
views_of_items : augmented views of gallery images, because there are no labels.
left_out_items : items; each item is excluded from its own results.
captions : texts.
"""


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Queries of one kind.

    Attributes
    ----------
    kind : see `Kind`.
    observed : B queries.
    groups : (B,) group numbers of matched queries and items; copies and photographs of one object
        share a number. None for absent queries.
    sources : (B,) source of each query; None if unknown.
    labels : (B,) label of each withheld query; None for all other queries.
    weight : weight of each query.
    """

    kind: Kind
    observed: RetrievedQueries
    groups: Integers | None = None
    sources: Names | None = None
    labels: Names | None = None
    weight: float = 1.0

    @property
    def absent(self) -> bool:
        """Whether the queries have no match in the gallery."""
        return self.kind not in {"matched", "items"}

    @property
    def clusters(self) -> Integers:
        """Cluster numbers (B,); queries of one cluster are not independent.

        Absent queries of one label are right or wrong together, so they form one cluster.
        """
        if self.groups is not None:
            return self.groups
        of_label = self.observed.codes.astype(np.int64)
        return -1 - np.abs(of_label) * 2 - (of_label < 0)


@dataclass(frozen=True, slots=True)
class CalibrationQueries:
    """The queries for the calibration of a gallery.

    Attributes
    ----------
    groups : the queries by kind. Absent queries are ``hidden`` or ``withheld``; at least one of the
        two kinds is given. There are ``items`` if there are too few held-out queries, and the
        encoder was not trained on the gallery's images.
    origin : the origin of the matched queries.
    unseen : whether the encoder was not trained on the gallery's labels.
    rivals : n / m. The gallery has n labels; withheld queries were compared with m of these labels.
        See `Earlier`.
    item_rows : index of each query of ``items`` among the gallery images.
    n_put : number of queries of ``items`` that were added to the gallery after the held-out queries
        were chosen. They come first. Held-out queries do not represent added items.
    """

    groups: Sequence[QueryGroup]
    origin: Origin = "held_out_images"
    unseen: bool = False
    rivals: float = 1.0
    item_rows: Integers | None = None
    n_put: int = 0

    def of(self, *kinds: Kind) -> list[QueryGroup]:
        """Return the queries of some kinds, in the order of `Kind`; by default, all queries."""
        kinds = kinds or get_args(Kind)
        chosen = [one for one in self.groups if one.kind in kinds]
        return sorted(chosen, key=lambda one: get_args(Kind).index(one.kind))

    @property
    def matched(self) -> RetrievedQueries:
        """The queries of the kind ``matched``."""
        return self.of("matched")[0].observed

    @property
    def absent(self) -> list[RetrievedQueries]:
        """The absent queries that are not gallery images."""
        return [one.observed for one in self.of("hidden", "withheld")]

    @property
    def absence(self) -> Absence:
        """The kind of the absent queries."""
        if not self.of("hidden"):
            return "absent_labels"
        if self.origin == "views_of_items":
            return "near_misses_of_views"
        return "hidden_labels" if self.unseen else "hidden_trained_labels"
