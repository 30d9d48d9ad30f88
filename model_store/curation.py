"""Checks of a gallery for its curator: near duplicates, and labels that neighbours contradict.

Both read stored embeddings only. A gallery is examined in the order of the ids, part by part, so
that a request needs a bounded time however large the gallery is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.gallery import Gallery

N_NEIGHBOURS = 12
"""Number of nearest items that vote on the label of an item."""

N_DUPLICATES = 20
"""Maximum number of near duplicates listed for one item."""

TEMPERATURE = 0.1
"""A vote has the weight exp(similarity / temperature)."""

MIN_VOTERS = 3
"""Minimum number of neighbours with the suggested label."""

COPY = 0.9999
"""Minimum similarity of a copy of the same picture. It has no vote, because it usually has the same
wrong label."""

AT_ONCE = 64
"""Number of items that are searched together; the time is checked after each part."""

Rows = NDArray[np.int64]
FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class LabelError:
    """An item whose neighbours confidently have another label.

    Attributes
    ----------
    row : row of the item.
    suggested : code of the label that the neighbours have.
    confidence : weighted share of the neighbours with this label.
    neighbours, similarities : (n,) the neighbours that voted, nearest first.
    """

    row: int
    suggested: int
    confidence: float
    neighbours: Rows
    similarities: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """An item, and the other items with nearly the same embedding.

    Attributes
    ----------
    row : row of the item.
    duplicates, similarities : (n,) the nearest such items, at most `N_DUPLICATES`, nearest first.
    """

    row: int
    duplicates: Rows
    similarities: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Examined(Generic[FoundT]):
    """The result for a part of a gallery.

    Attributes
    ----------
    n_examined : number of items in this part.
    last : row of the last item in it; None if no more items follow.
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
    """Check items by id, until ``limit`` are found or the time is used up.

    At least `AT_ONCE` items are examined, and a few more than ``limit`` can be found.

    Parameters
    ----------
    after : row after which to begin; None for the first item.
    check : returns what it finds among some rows.
    budget_s : seconds after which no further part is begun.
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


def label_errors(gallery: Gallery, rows: Rows, confidence: float) -> list[LabelError]:
    """Return the items among ``rows`` (B,) whose neighbours confidently have another label.

    The `N_NEIGHBOURS` nearest items vote, except copies and items without a label. Items without a
    label are not checked.

    Parameters
    ----------
    confidence : minimum weighted share of the neighbours with the suggested label.
    """
    codes = gallery.label_codes(rows)
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    if not rows.size:
        return []
    nearest, similarities = _others(gallery, rows, N_NEIGHBOURS)
    votes = np.where(nearest >= 0, gallery.label_codes(np.maximum(nearest, 0)), -1)
    votes[similarities >= COPY] = -1
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


def elected(
    votes: NDArray[np.int32], similarities: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the label with the largest weight of votes, (B,), and its share of the weight, (B,).

    The label is −1 where fewer than `MIN_VOTERS` neighbours have it.

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
    """Return the items among ``rows`` (B,) that have near duplicates anywhere in the gallery.

    A pair is found from both of its items.

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
    """Return the ``n`` nearest other items of each row, (B, n), and their similarities.

    Missing ones have the row −1.
    """
    found = gallery.candidates(gallery.directions(rows), n + 1)
    others = np.full((len(rows), n), -1, dtype=np.int64)
    similarities = np.full((len(rows), n), -1.0)
    for place, row in enumerate(rows.tolist()):
        kept = np.flatnonzero(found.rows[place] != row)[:n]
        others[place, : len(kept)] = found.rows[place][kept]
        similarities[place, : len(kept)] = found.similarities[place][kept]
    return others, similarities
