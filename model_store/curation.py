"""Checks of a gallery for its curator: near duplicates, and labels that may be wrong.

The checks read only stored embeddings. A gallery is examined in parts. So the time of a request is
limited, and does not depend on the size of the gallery. `examine` lists findings in the order of
the ids; a `Ranking` lists the strongest findings of the whole gallery first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.gallery import Gallery
from model_store.items import series_in

N_NEIGHBOURS = 12
"""Number of nearest items whose labels vote on the label of an item."""

N_SEARCHED = 48
"""Number of items to search for voters, if the item belongs to a series, such as a burst. Items of
the same series have no vote, because they usually have the same wrong label."""

N_DUPLICATES = 20
"""Maximum number of near duplicates in the list of one item."""

TEMPERATURE = 0.1
"""Temperature of the votes: a vote has the weight exp(similarity / temperature)."""

MIN_VOTERS = 3
"""Minimum number of neighbours with the suggested label."""

COPY = 0.9999
"""A neighbour with at least this similarity counts as a copy of the same picture. A copy has no
vote, because it usually has the same wrong label."""

AT_ONCE = 64
"""Number of items in a part; the time limit is checked after each part."""

LEAST = 0.5
"""Minimum strength of the findings in a `Ranking`."""

Rows = NDArray[np.int64]
Place = tuple[float, int]
"""A place in a `Ranking`: the strength and the row of a finding."""


class Finding(Protocol):
    """What a check finds about one item."""

    @property
    def row(self) -> int:
        """The row of the item."""

    @property
    def strength(self) -> float:
        """How clear the finding is, at most 1."""

    @property
    def rows(self) -> Rows:
        """The rows of the item and of the other items in the finding."""


FoundT = TypeVar("FoundT", bound=Finding)


@dataclass(frozen=True, slots=True)
class LabelError:
    """An item that probably has a wrong label, because its neighbours have another label.

    Attributes
    ----------
    row : row of the item.
    suggested : code of the label that the neighbours have.
    confidence : weighted share of the neighbours that have the suggested label.
    neighbours : (n,) rows of the neighbours that voted, nearest first.
    similarities : (n,) similarities of these neighbours.
    """

    row: int
    suggested: int
    confidence: float
    neighbours: Rows
    similarities: NDArray[np.float64]

    @property
    def strength(self) -> float:
        """See `Finding`."""
        return self.confidence

    @property
    def rows(self) -> Rows:
        """See `Finding`."""
        return np.append(self.neighbours, self.row)


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """An item, and the other items with nearly the same embedding.

    Attributes
    ----------
    row : row of the item.
    duplicates : (n,) rows of the other items, nearest first; at most `N_DUPLICATES`.
    similarities : (n,) similarities of the other items.
    """

    row: int
    duplicates: Rows
    similarities: NDArray[np.float64]

    @property
    def strength(self) -> float:
        """See `Finding`; the similarity of the nearest duplicate."""
        return float(self.similarities[0])

    @property
    def rows(self) -> Rows:
        """See `Finding`."""
        return np.append(self.duplicates, self.row)


@dataclass(frozen=True, slots=True)
class Examined(Generic[FoundT]):
    """The result for a part of a gallery.

    Attributes
    ----------
    n_examined : number of items in this part.
    last : row of the last item in this part; None if no items follow.
    """

    found: list[FoundT]
    n_examined: int
    last: int | None


def examine(
    gallery: Gallery,
    after: int | None,
    check: Callable[[Gallery, Rows], list[FoundT]],
    limit: int,
    budget_s: float,
) -> Examined[FoundT]:
    """Check items in the order of ids, until ``limit`` results are found or the time is over.

    At least `AT_ONCE` items are examined. The number of results can exceed ``limit`` a little.

    Parameters
    ----------
    after : row after which to begin; None for the first item.
    check : function that checks the items in some rows, and returns the results.
    budget_s : time in seconds after which no further part is examined.
    """
    until = time.monotonic() + budget_s
    found: list[FoundT] = []
    n_examined, last = 0, after
    while True:
        rows = gallery.page(last, AT_ONCE)
        if not rows.size:
            return Examined(found, n_examined, None)
        found += check(gallery, rows)
        n_examined, last = n_examined + len(rows), int(rows[-1])
        if len(found) >= limit or time.monotonic() >= until:
            return Examined(found, n_examined, last)


class Ranking(Generic[FoundT]):
    """The findings of a whole gallery in the order of their strength, the strongest first.

    Only row and strength of a finding are stored, 16 bytes. A page computes its findings again with
    the current gallery: it omits corrected and removed items. Items that were added or changed are
    examined before the next page. A changed item gets a new row, so it can be on two pages, or on
    none. A finding of an unchanged item whose neighbours were changed appears only in a new
    ranking.

    Parameters
    ----------
    check : function of a gallery, rows and the minimum strength of a finding.
    """

    def __init__(self, check: Callable[[Gallery, Rows, float], list[FoundT]]) -> None:
        self._check = check
        self._rows = np.empty(0, dtype=np.int64)
        self._strengths = np.empty(0)
        self._next = 0  # all items in earlier rows are examined

    def examine(self, gallery: Gallery, budget_s: float) -> tuple[int, int]:
        """Examine further items; return the numbers of items examined now, and still to examine.

        At least `AT_ONCE` items are examined, if so many are left.

        Parameters
        ----------
        budget_s : time in seconds after which no further part is examined.
        """
        until = time.monotonic() + budget_s
        left = gallery.rows()
        left = left[left >= self._next]
        found: list[FoundT] = []
        n_examined = 0
        while n_examined < len(left):
            rows = left[n_examined : n_examined + AT_ONCE]
            found += self._check(gallery, rows, LEAST)
            self._next = int(rows[-1]) + 1
            n_examined += len(rows)
            if time.monotonic() >= until:
                break
        if found:
            rows = np.append(self._rows, [one.row for one in found])
            strengths = np.append(self._strengths, [one.strength for one in found])
            order = np.lexsort((rows, -strengths))
            self._rows, self._strengths = rows[order], strengths[order]
        return n_examined, len(left) - n_examined

    def page(
        self, gallery: Gallery, after: Place | None, least: float, limit: int, budget_s: float
    ) -> tuple[list[FoundT], Place | None]:
        """Return up to ``limit`` findings after a place, and the place after which others follow.

        The place is None at the end of the ranking.

        Parameters
        ----------
        after : place after which to begin; None for the first finding.
        least : minimum strength of a finding, at least `LEAST`.
        budget_s : time in seconds after which the page ends.
        """
        until = time.monotonic() + budget_s
        passes = (self._strengths >= least) & np.isin(self._rows, gallery.rows())
        if after is not None:
            strength, row = after
            is_tied = self._strengths == strength
            passes &= (self._strengths < strength) | (is_tied & (self._rows > row))
        rows, strengths = self._rows[passes], self._strengths[passes]
        found: list[FoundT] = []
        n = 0
        while n < len(rows) and len(found) < limit:
            part = rows[n : n + min(limit - len(found), AT_ONCE)]
            found += self._check(gallery, part, least)
            n += len(part)
            if time.monotonic() >= until:
                break
        return found, (float(strengths[n - 1]), int(rows[n - 1])) if n < len(rows) else None


def label_errors(gallery: Gallery, rows: Rows, confidence: float) -> list[LabelError]:
    """Return the items in ``rows`` (B,) that probably have a wrong label.

    The `N_NEIGHBOURS` nearest items outside the item's series vote, except copies and items without
    a label. Items without a label are not checked.

    Parameters
    ----------
    confidence : minimum weighted share of the neighbours with the suggested label.
    """
    codes = gallery.label_codes(rows)
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    if not rows.size:
        return []
    series = [series_in(item.metadata) for item in gallery.items(rows)]
    nearest, similarities = _others(gallery, rows, N_SEARCHED if any(series) else N_NEIGHBOURS)
    votes = np.where(nearest >= 0, gallery.label_codes(np.maximum(nearest, 0)), -1)
    is_own = _of_series(gallery, nearest, series)
    is_too_far = np.cumsum(~is_own, axis=1) > N_NEIGHBOURS
    votes[is_own | is_too_far | (similarities >= COPY)] = -1
    suggested, shares = elected(votes, similarities)
    is_error = (suggested >= 0) & (suggested != codes) & (shares >= confidence)
    errors = []
    for place in np.flatnonzero(is_error).tolist():
        voted = votes[place] >= 0
        errors.append(
            LabelError(
                int(rows[place]),
                int(suggested[place]),
                float(shares[place]),
                nearest[place][voted],
                similarities[place][voted],
            )
        )
    return errors


def _of_series(gallery: Gallery, nearest: Rows, series: Sequence[str | None]) -> NDArray[np.bool_]:
    """Return whether items ``nearest`` (B, n) belong to the series (B,) of each item."""
    rows = np.unique(nearest[[name is not None for name in series]])
    rows = rows[rows >= 0]
    known = {
        row: series_in(item.metadata)
        for row, item in zip(rows.tolist(), gallery.items(rows), strict=True)
    }
    return np.array(
        [
            [name is not None and known.get(row) == name for row in of_item]
            for name, of_item in zip(series, nearest.tolist(), strict=True)
        ]
    )


def elected(
    votes: NDArray[np.int32], similarities: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the label (B,) with the largest weight, and the label's share (B,) of all weight.

    The result is −1 in place of a label for which fewer than `MIN_VOTERS` neighbours have voted.

    Parameters
    ----------
    votes : (B, n) label codes of the neighbours; −1 for no vote.
    similarities : (B, n).
    """
    is_vote = votes >= 0
    weights = np.where(is_vote, np.exp((similarities - 1) / TEMPERATURE), 0.0)
    same = (votes[:, :, None] == votes[:, None, :]) & is_vote[:, None, :]
    sums = (same * weights[:, None, :]).sum(axis=2)  # (B, n): weight of each neighbour's label
    best = sums.argmax(axis=1)
    each = np.arange(len(votes))
    total = weights.sum(axis=1)
    shares = np.divide(sums[each, best], total, out=np.zeros(len(votes)), where=total > 0)
    label = np.where(same[each, best].sum(axis=1) >= MIN_VOTERS, votes[each, best], -1)
    return label.astype(np.int32), shares


def near_duplicates(gallery: Gallery, rows: Rows, threshold: float) -> list[NearDuplicates]:
    """Return the items in ``rows`` (B,) that have near duplicates in the gallery.

    Two near duplicates appear in each other's results, if the rows of both items are checked.

    Parameters
    ----------
    threshold : minimum similarity of near duplicates.
    """
    nearest, similarities = _others(gallery, rows, N_DUPLICATES)
    are_near = (nearest >= 0) & (similarities >= threshold)
    return [
        NearDuplicates(
            int(rows[place]),
            nearest[place][are_near[place]],
            similarities[place][are_near[place]],
        )
        for place in np.flatnonzero(are_near.any(axis=1)).tolist()
    ]


def _others(gallery: Gallery, rows: Rows, n: int) -> tuple[Rows, NDArray[np.float64]]:
    """Return the ``n`` nearest items (B, n) of each row, and their similarities.

    A row's own item is not among its nearest items. If there are fewer than ``n`` items, the
    remaining places contain the row −1.
    """
    found = gallery.candidates(gallery.directions(rows), n + 1)
    others = np.full((len(rows), n), -1, dtype=np.int64)
    similarities = np.full((len(rows), n), -1.0)
    for place, row in enumerate(rows.tolist()):
        kept = np.flatnonzero(found.rows[place] != row)[:n]
        others[place, : len(kept)] = found.rows[place][kept]
        similarities[place, : len(kept)] = found.similarities[place][kept]
    return others, similarities
