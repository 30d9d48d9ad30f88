"""Counts how many items have each value of a field, by the index of the field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.filters.columns import FALSE, FIRST_VALUE, LIST, TRUE, Column, Postings
from model_store.gallery.filters.grammar import Scalar
from model_store.records import Facet, FacetValue


@dataclass(frozen=True, slots=True)
class Counted:
    """The index of a field for some of a gallery's items, for example for the items of the build.

    Attributes
    ----------
    column : index of the field.
    gone : rows of removed items in the index; None if no item was removed.
    """

    column: Column
    gone: NDArray[np.int64] | None = None

    def values(self) -> NDArray[np.int64]:
        """Count the items for each code of ``column.values``."""
        counts = np.diff(self.column.values.starts)
        if self.gone is not None:
            counts -= np.bincount(self.column.codes[self.gone], minlength=len(counts))
        return counts

    def held(self) -> NDArray[np.int64]:
        """For each code of ``column.held``, count the items whose list has the code."""
        held = self.column.held
        if self.gone is None:
            return np.diff(held.starts)
        there = np.ones(len(self.column.codes), dtype=np.int64)
        there[self.gone] = 0
        before = np.concatenate([[0], np.cumsum(there[held.rows])])
        return np.diff(before[held.starts])


def facet_of(field: str, parts: Sequence[Counted], most: int) -> Facet:
    """Describe a field, with at most ``most`` of its values.

    The comparison is ``has`` if more items have a list in the field than a single value. Equally
    frequent values are in ascending order. There are no values if no two items have the same value.

    Each item is in exactly one of ``parts``. The time for the first part grows with its number of
    distinct values and its number of removed items. The time for each later part grows with its
    number of items.
    """
    by_value = [part.values() for part in parts]
    of_lists = sum(int(counts[LIST]) for counts in by_value)
    in_lists = of_lists > sum(int(_of_values(counts).sum()) for counts in by_value)
    by_value = [part.held() for part in parts] if in_lists else by_value
    postings = [part.column.held if in_lists else part.column.values for part in parts]
    first, counts = postings[0], _of_values(by_value[0])
    others = _joined(first, counts, zip(postings[1:], map(_of_values, by_value[1:]), strict=True))
    ranked = [(_value(first, code), int(counts[code])) for code in _frequent(counts, most)]
    ranked += others.items()
    ranked.sort(key=lambda one: (-one[1], _order(one[0])))
    numbers = first.nearest[counts[FIRST_VALUE : FIRST_VALUE + len(first.nearest)] > 0]
    ends = [float(one) for one in (*numbers[:1], *numbers[-1:], *filter(_is_number, others))]
    return Facet(
        field=field,
        comparison="has" if in_lists else "eq",
        n_items=of_lists if in_lists else int(counts.sum()) + sum(others.values()),
        n_values=int(np.count_nonzero(counts)) + len(others),
        least=min(ends, default=None),
        greatest=max(ends, default=None),
        values=[FacetValue(value=value, n_items=n) for value, n in ranked[:most]]
        if ranked and ranked[0][1] > 1
        else [],
    )


def _joined(
    first: Postings,
    counts: NDArray[np.int64],
    others: Iterable[tuple[Postings, NDArray[np.int64]]],
) -> dict[Scalar, int]:
    """Add the counts of ``others`` to ``counts``; return the counts of new values.

    ``counts`` has one count for each code of ``first``. ``first`` lacks a new value.
    """
    new: Counter[Scalar] = Counter()
    for postings, more in others:
        for code in np.flatnonzero(more).tolist():
            value = _value(postings, code)
            known = first.compared("eq", value)
            if len(known):
                counts[known.start] += more[code]
            else:
                new[value] += int(more[code])
    return new


def _of_values(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copy the counts; the codes of missing, null, lists and objects get the count 0."""
    counts = counts.copy()
    counts[[code for code in range(FIRST_VALUE) if code not in (FALSE, TRUE)]] = 0
    return counts


def _frequent(counts: NDArray[np.int64], most: int) -> list[int]:
    """Return at most ``most`` codes: the codes with the largest positive counts, largest first."""
    least = np.partition(counts, -most)[-most] if len(counts) > most else 0
    large = np.flatnonzero(counts > least)
    equal = np.flatnonzero((counts == least) & (counts > 0))[: most - len(large)]
    places = np.concatenate([large, equal])
    order: list[int] = places[np.lexsort((places, -counts[places]))].tolist()
    return order


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _order(value: Scalar) -> tuple[int, float, bytes]:
    """Return a sort key for the order: false, true, numbers, texts."""
    if isinstance(value, str):
        return 2, 0.0, value.encode()
    return int(_is_number(value)), float(value or 0), b""


def _value(postings: Postings, code: int) -> Scalar:
    """The value of a code: a number, a text, true or false."""
    if code in (FALSE, TRUE):
        return code == TRUE
    place = code - FIRST_VALUE
    if place < len(postings.nearest):
        return _number(postings.nearest[place], int(postings.left[place]))
    first = place - len(postings.nearest)
    start, end = postings.text_starts[first : first + 2]
    return postings.texts[start:end].tobytes().decode()


def _number(nearest: np.float64, left: int) -> float:
    """Compute a number from the nearest float64 and the remainder; see `Column`."""
    number = float(nearest)
    return int(number) + left if number.is_integer() else number
