"""Options as Python keyword arguments, with the same values as over HTTP, and values as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from model_store.errors import InvalidRequest
from model_store.messages import Order
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


def as_json(place: str, value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value in the types of JSON: numbers and arrays of NumPy become those of Python.

    Raises
    ------
    TypeError : JSON has no such type; the message names the place of the value.
    InvalidRequest : a number is infinite or no number; the message names its place.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind is not None and kind in "biuf":
        value = value.tolist()  # type: ignore[attr-defined] # of NumPy, which is not imported here
    if isinstance(value, Mapping):
        return {
            require_text(f"{place}: key {key!r}", key): as_json(f"{place}.{key}", one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [as_json(f"{place}[{index}]", one) for index, one in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{place}: received {value}, wanted a finite number.")
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"{place}: received {type(value).__name__} {str(value)[:80]!r}, wanted text, a number, "
        "true, false, null, a list or a mapping."
    )


def require_text(place: str, value: object) -> str:
    """Return a text, unchanged.

    Raises
    ------
    TypeError : the value is not a text; the message names its place.
    """
    if not isinstance(value, str):
        raise TypeError(f"{place}: received {type(value).__name__}, wanted text.")
    return value
