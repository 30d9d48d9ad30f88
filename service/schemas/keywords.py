"""Options as Python keyword arguments, with the same values as over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from model_store.verdicts import Order
from service.schemas.search import OnUncertain

Filter = Mapping[str, Any]
"""A condition on the items to find, for example ``{"label": "shoe", "year": {"gte": 2000}}``."""


class ItemOptions(TypedDict, total=False):
    """The options that choose the items of a list.

    Attributes
    ----------
    filter : condition on items; probabilities are for the whole gallery, see ``filter_means``.
    group_by : ``label`` lists only the nearest item of each label.
    duplicate_similarity : leave out an item if its similarity to a nearer result is at least this.
    """

    filter: Filter
    group_by: Literal["label"]
    duplicate_similarity: float


class ListOptions(ItemOptions, total=False):
    """The options of a list of results; the service has a default for each option.

    Attributes
    ----------
    limit : number of results; 10 by default.

    Examples
    --------
    >>> options: ListOptions = {"limit": 3, "group_by": "label"}
    >>> similar = vouch.similar("demo", "chair-7", **options)
    """

    limit: int


class DecisionOptions(TypedDict, total=False):
    """The options of a decision.

    Attributes
    ----------
    alpha : share of ordinary images that may be called outliers.
    coverage : probability that the result set holds a match.
    expected_absent : share of the queries that have no match in the gallery.
    source : the source of the query, one of the gallery's sources.

    Examples
    --------
    >>> options: DecisionOptions = {"alpha": 0.01, "expected_absent": 0.2}
    >>> answer = vouch.search("demo", Path("photo.png"), **options)
    """

    alpha: float
    coverage: float
    expected_absent: float
    source: str


class QueryOptions(ItemOptions, DecisionOptions, total=False):
    """The options of a search, without the number of results.

    Attributes
    ----------
    filter_means : ``known`` if the caller knows that a true match passes the filter.
    order : ``probability`` lists the likeliest match first.
    on_uncertain : ``refuse`` leaves the results empty unless the verdict is ``match``.
    """

    filter_means: Literal["show", "known"]
    order: Order
    on_uncertain: OnUncertain


class SearchOptions(QueryOptions, ListOptions, total=False):
    """The options of a search.

    Examples
    --------
    >>> options: SearchOptions = {"limit": 3, "filter": {"label": "chair"}, "order": "probability"}
    >>> answer = vouch.search("demo", Path("photo.png"), **options)
    """


class CalibrationBounds(TypedDict, total=False):
    """The error bounds of a calibration: the fields of `CalibrationWanted`.

    Examples
    --------
    >>> bounds: CalibrationBounds = {"max_error": 0.1, "coverage": 0.9}
    >>> run = vouch.manage.calibrate("acme-shoes", **bounds)
    """

    max_error: float
    max_false_match_rate: float
    expected_absent: float
    alpha: float
    coverage: float
