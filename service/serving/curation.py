"""Checks a gallery for its curator, in parts of limited size; caches the planes of its map."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

import numpy as np

from model_store.bundles.bundle import Bundle
from model_store.curation import FoundT, Place, Ranking, Rows, examine
from model_store.gallery import Gallery, Item
from model_store.gallery_map import Plane
from service.serving.lease import Lease

BUDGET_S = 0.5
"""Maximum seconds of computation of one request; after this time a page ends, even without
results."""

RANKING_LIFE_S = 3600.0
"""Age in seconds at which a gallery is ranked anew."""

_MAX_RANKINGS = 64
"""Maximum number of cached rankings, one for each gallery and check."""

_MAX_PLANES = 64
"""Maximum number of cached planes, one for each gallery."""


@dataclass(frozen=True, slots=True)
class Check(Generic[FoundT]):
    """A check of a gallery.

    Attributes
    ----------
    parameter : parameter of a request that sets the minimum strength of a finding.
    found_in : function of a gallery, rows and the minimum strength of a finding.
    """

    parameter: Literal["confidence", "threshold"]
    found_in: Callable[[Gallery, Rows, float], list[FoundT]]


@dataclass(frozen=True, slots=True)
class ExaminedPage(Generic[FoundT]):
    """The problems that were found in a part of a gallery, and the items with these problems.

    Attributes
    ----------
    found : the problems.
    n_examined : number of items that were examined for this page.
    items : the items, by row number.
    row : row after which the next page begins; None if no page follows, and in a ranking.
    place : place in the ranking after which the next page begins; None if no page follows, if the
        next page is the first one, and without a ranking.
    n_unranked : number of items to examine before a ranking has results.
    """

    gallery: Gallery
    found: list[FoundT]
    n_examined: int
    items: dict[int, Item]
    row: int | None = None
    place: Place | None = None
    n_unranked: int = 0

    @property
    def is_last(self) -> bool:
        """Whether no page follows."""
        return self.row is None and self.place is None and not self.n_unranked


def examined_page(
    bundle: Bundle, after: int | None, limit: int, check: Check[FoundT], least: float
) -> ExaminedPage[FoundT]:
    """Check the items after the row ``after``, in the order of their ids; see `examine`.

    Parameters
    ----------
    least : minimum strength of a finding.
    """
    gallery = bundle.retriever.gallery
    if after is not None and after >= gallery.n_rows and bundle.live is not None:
        gallery = bundle.live.refresh()  # the cursor came from a replica with newer changes
    if after is not None and after >= gallery.n_rows:
        return ExaminedPage(gallery, [], 0, {})
    part = examine(
        gallery, after, lambda now, rows: check.found_in(now, rows, least), limit, BUDGET_S
    )
    items = _items_of(gallery, part.found)
    return ExaminedPage(gallery, part.found, part.n_examined, items, part.last)


@dataclass(slots=True)
class _Known:
    """A cached ranking of a bundle."""

    bundle_id: str
    ranking: Ranking[Any]
    made_at: float = field(default_factory=time.monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Rankings:
    """Lists the clearest findings of a whole gallery first.

    The first requests examine the gallery, each for a limited time. The result is cached for later
    requests; each worker has its own cache.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    async def page(
        self, lease: Lease, after: Place | None, limit: int, check: Check[FoundT], least: float
    ) -> ExaminedPage[FoundT]:
        """Return a page of a ranking, without findings while items are still to be examined.

        Parameters
        ----------
        after : place after which the page begins; None for the first page.
        least : minimum strength of a finding.
        """
        known = self._ranking(lease.bundle, check)
        async with known.turn:  # one request examines at a time; the others then find its result
            return await lease.engine.compute(
                lambda: _ranked_page(
                    lease.bundle.retriever.gallery, known.ranking, after, limit, least
                )
            )

    def _ranking(self, bundle: Bundle, check: Check[Any]) -> _Known:
        key = bundle.key, check.parameter
        known = self._known.get(key)
        is_old = known is not None and time.monotonic() - known.made_at > RANKING_LIFE_S
        if known is None or is_old or known.bundle_id != bundle.manifest.id:
            known = self._known[key] = _Known(bundle.manifest.id, Ranking(check.found_in))
        self._known.move_to_end(key)
        while len(self._known) > _MAX_RANKINGS:
            self._known.popitem(last=False)
        return known


def _ranked_page(
    gallery: Gallery, ranking: Ranking[FoundT], after: Place | None, limit: int, least: float
) -> ExaminedPage[FoundT]:
    until = time.monotonic() + BUDGET_S
    n_examined, n_left = ranking.examine(gallery, BUDGET_S)
    found: list[FoundT] = []
    place = after
    if not n_left:
        found, place = ranking.page(gallery, after, least, limit, until - time.monotonic())
    items = _items_of(gallery, found)
    return ExaminedPage(gallery, found, n_examined, items, place=place, n_unranked=n_left)


def _items_of(gallery: Gallery, found: list[FoundT]) -> dict[int, Item]:
    """Return the items in findings, by row."""
    if not found:
        return {}
    rows = np.unique(np.concatenate([one.rows for one in found]))
    return dict(zip(rows.tolist(), gallery.items(rows), strict=True))


class GalleryPlanes:
    """Computes the planes of gallery maps; a plane is cached until its gallery changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[tuple[str, int, int], Plane]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, lease: Lease) -> Plane:
        """Return the plane of a gallery's map; concurrent requests share one computation."""
        bundle = lease.bundle
        state = bundle.state
        async with self._turn:
            known = self._known.get(bundle.key)
            if known is None or known[0] != state:
                plane = await lease.engine.compute(lambda: Plane.of(bundle.retriever.gallery))
                known = self._known[bundle.key] = state, plane
            self._known.move_to_end(bundle.key)
            while len(self._known) > _MAX_PLANES:
                self._known.popitem(last=False)
            return known[1]
