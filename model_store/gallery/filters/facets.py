"""The values of a field and how many items have each, read off its index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.filters.columns import FALSE, FIRST_VALUE, LIST, TRUE, Column, Postings
from model_store.gallery.filters.grammar import Scalar


@dataclass(frozen=True, slots=True)
class Facet:
    """The contents of a field.

    Attributes
    ----------
    field : its name in a filter.
    comparison : by which a filter finds a value: ``has`` where most items have a list.
    n_items : items that have a value of it.
    n_values : distinct numbers, texts, true and false.
    least, greatest : of the numbers; None where there are none.
    values : the most frequent values and the number of items of each; of equal ones the first in
        the order of values. None of a field in which no two items agree.
    """

    field: str
    comparison: Literal["eq", "has"]
    n_items: int
    n_values: int
    least: float | None
    greatest: float | None
    values: tuple[tuple[Scalar, int], ...]


def facet_of(field: str, column: Column, most: int) -> Facet:
    """Describe a field by its index, with at most ``most`` values.

    It takes as long as there are distinct values, however many items.
    """
    of_lists = column.values.count(range(LIST, LIST + 1))
    in_lists = of_lists > _n_valued(column.values)
    postings = column.held if in_lists else column.values
    counts = np.diff(postings.starts)
    counts[[code for code in range(FIRST_VALUE) if code not in (FALSE, TRUE)]] = 0
    numbers = postings.nearest
    return Facet(
        field=field,
        comparison="has" if in_lists else "eq",
        n_items=of_lists if in_lists else int(counts.sum()),
        n_values=int(np.count_nonzero(counts)),
        least=float(numbers[0]) if numbers.size else None,
        greatest=float(numbers[-1]) if numbers.size else None,
        values=tuple(
            (_value(postings, code), int(counts[code])) for code in _frequent(counts, most)
        ),
    )


def _n_valued(values: Postings) -> int:
    """Return the number of rows whose field is a number, a text, true or false."""
    of_flags = values.count(range(FALSE, TRUE + 1))
    return of_flags + values.count(range(FIRST_VALUE, values.codes.stop))


def _frequent(counts: NDArray[np.int64], most: int) -> list[int]:
    """The places of the ``most`` largest counts, largest first; none where all are 1 or less."""
    if counts.max(initial=0) <= 1:
        return []
    least = np.partition(counts, -most)[-most] if len(counts) > most else 0
    large = np.flatnonzero(counts > least)
    equal = np.flatnonzero((counts == least) & (counts > 0))[: most - len(large)]
    places = np.concatenate([large, equal])
    order: list[int] = places[np.lexsort((places, -counts[places]))].tolist()
    return order


def _value(postings: Postings, code: int) -> Scalar:
    """The number or text, true or false, of a code."""
    if code in (FALSE, TRUE):
        return code == TRUE
    place = code - FIRST_VALUE
    if place < len(postings.nearest):
        return _number(postings.nearest[place], int(postings.left[place]))
    first = place - len(postings.nearest)
    start, end = postings.text_starts[first : first + 2]
    return postings.texts[start:end].tobytes().decode()


def _number(nearest: np.float64, left: int) -> float:
    """The number of which these are the nearest float64 and what is left of an integer."""
    number = float(nearest)
    return int(number) + left if number.is_integer() else number
