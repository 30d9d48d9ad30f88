"""The parameters of a search, and the results of an engine."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.decision import Assessment, FilterMeans
from model_store.feedback import DecisionKind
from model_store.gallery import Allowed, Filter, Gallery, Item, Thumbnail
from model_store.gallery.protocol import find_row
from model_store.messages import Order
from model_store.predictive import Predictive
from model_store.queries import ListDecision, NeighbourList, VectorQuery
from model_store.records import QualityHint
from model_store.search import EVERYTHING, Diversity
from service.encoding.cache import CacheEntry
from service.schemas import QueryImage, QueryText, ShareOrigin


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """The parameters of a search.

    If ``alpha``, ``coverage``, ``order`` or a share is None, the gallery's own value is used.

    Attributes
    ----------
    limit : number of items in the answer.
    alpha : rate of false alarms of the outlier flag.
    coverage : requested coverage of the result set.
    where : filter on the items that the search may find; None if it may find all items.
    diversity : rule that leaves out an item if a nearer item already represents it.
    expected_absent : share of the caller's queries without a match, from the request.
    of_key : share of the caller's queries without a match, from the caller's key.
    source : where the query comes from.
    filter_means : ``known`` if the caller knows that a true match passes ``where``.
    order : order of the list.
    """

    limit: int
    alpha: float | None = None
    coverage: float | None = None
    where: Filter | None = None
    diversity: Diversity = EVERYTHING
    expected_absent: float | None = None
    of_key: float | None = None
    source: str | None = None
    filter_means: FilterMeans = "show"
    order: Order | None = None


@dataclass(frozen=True, slots=True)
class ReviewerDecision:
    """A reviewer's decision on a query; see `Decided`."""

    query_id: str
    decision: DecisionKind
    item_id: str | None = None
    reviewer: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer for which a reviewer recorded a decision.

    Attributes
    ----------
    match_fingerprint : see `Calibration.match_fingerprint`.
    version : version of the gallery that gave the answer.
    """

    query_id: str
    answer: Answer
    match_fingerprint: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """An embedded query.

    Attributes
    ----------
    query_id : hash of the request's content.
    entry : the cache entry of the query.
    cache : whether the embedding came from the cache.
    seconds : duration of each stage.
    """

    query_id: str
    entry: CacheEntry
    cache: Literal["hit", "miss"]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """An answer, with its origin and times.

    Attributes
    ----------
    query_id : hash of the request's content.
    share_origin : origin of the share of absent queries (queries without a match in the gallery).
        The probabilities were computed with this share.
    seconds : duration of each stage, in order, and ``total``.
    audit : whether the answer was drawn at random for review.
    gone : ids of found items that were deleted, replaced or edited after the search; these items
        are not shown.
    at_ns : time of the answer, nanoseconds since 1970.
    text : the token count and warnings of a text query.
    match_fingerprint : see `Calibration.match_fingerprint`.
    """

    query_id: str
    image: QueryImage | None
    answer: Answer
    share_origin: ShareOrigin
    cache: Literal["hit", "miss"]
    seconds: dict[str, float]
    audit: bool = False
    gone: frozenset[str] = frozenset()
    at_ns: int = field(default_factory=time.time_ns)
    text: QueryText | None = None
    match_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class DecidedList:
    """The decision on neighbours from another store, with the origin and times of the decision."""

    query_id: str
    image: None
    neighbours: NeighbourList
    decided: ListDecision
    alpha: float
    share_origin: ShareOrigin
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Assessed:
    """The assessment of an image, without a search."""

    query_id: str
    image: QueryImage | None
    measures: NDArray[np.float64]
    hints: list[QualityHint]
    predictive: Predictive
    assessment: Assessment
    alpha: float


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of an image, without a search."""

    query_id: str
    image: QueryImage | None
    predictive: Predictive
    assessment: Assessment
    alpha: float


@dataclass(frozen=True, slots=True)
class SimilarItems:
    """The items that are similar to the item ``item``, and the duration of each stage."""

    item: Item
    answer: Answer
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a gallery's items, ordered by id.

    Attributes
    ----------
    last : row of the last item; None if no more items follow.
    n_passing : number of items that pass the filter; None without a filter.
    """

    items: list[Item]
    last: int | None
    n_passing: int | None = None


_MOST_LOOKED_AT = 4_096
"""Maximum number of rows filtered in one block."""


def page_of(bundle: Bundle, after: int | None, limit: int, where: Filter | None = None) -> Page:
    """Return at most ``limit`` items after the row ``after``, in the order of their ids.

    Parameters
    ----------
    where : filter on the items; None for all items.
    """
    gallery = bundle.retriever.gallery
    if after is not None and after >= gallery.n_rows and bundle.live is not None:
        gallery = bundle.live.refresh()  # the cursor is from a replica with newer changes
    if after is not None and after >= gallery.n_rows:
        return Page([], None)
    allowed = None if where is None else gallery.matching(where)
    rows = _rows_of(gallery, after, limit + 1, allowed)  # one more row: is there a next page?
    shown = rows[:limit]
    last = int(shown[-1]) if len(rows) > limit else None
    n_passing = None if allowed is None else int(np.count_nonzero(allowed.mask()))
    return Page(gallery.items(shown), last, n_passing)


def _rows_of(
    gallery: Gallery, after: int | None, limit: int, allowed: Allowed | None
) -> NDArray[np.int64]:
    """Return at most ``limit`` allowed rows after the row ``after``, in the order of their ids."""
    if allowed is None:
        return gallery.page(after, limit)
    found, n = np.array([], dtype=np.int64), limit
    while len(found) < limit and (rows := gallery.page(after, n)).size:
        found = np.append(found, rows[allowed.at(rows)])
        after, n = int(rows[-1]), min(2 * n, _MOST_LOOKED_AT)
    return found[:limit]


def vector_id(query: VectorQuery) -> str:
    """Return the id of a vector query: a hash of its numbers."""
    digest = hashlib.sha256(b"vector")
    for part in (query.mean, query.variance, query.features, query.outlier_score):
        numbers = np.array([] if part is None else part, np.float64)
        digest.update(f"{numbers.size};".encode() + numbers.tobytes())
    return digest.hexdigest()


def changed_since(answer: Answer, searched: Gallery, now: Gallery) -> frozenset[str]:
    """Return the ids of an answer's items that were deleted, replaced or edited since the search.

    An edited item is not shown, because its old label or metadata must not appear.

    Parameters
    ----------
    searched, now : the gallery at the time of the search, and the gallery now.
    """
    if now is searched:
        return frozenset()
    ids = {match.id for match in answer.matches} | {item.id for item in answer.result_set}
    return frozenset(one for one in ids if find_row(now, one) != searched.row(one))


def picture_of(gallery: Gallery, item_id: str, size: Literal["thumbnail", "preview"]) -> Thumbnail:
    """Return the picture of an item; the thumbnail if the gallery keeps no preview.

    Raises
    ------
    ItemNotFound
    """
    preview = gallery.preview(item_id) if size == "preview" else b""
    return Thumbnail(preview, "image/jpeg") if preview else gallery.thumbnail(item_id)
