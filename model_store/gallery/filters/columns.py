"""The index of one field: its distinct values in order, the rows of each value, and facets.

Every row has one code. Missing, null, false, true, list and object have one code each. Every
distinct number and text has its own code, in ascending order. So a comparison with a value selects
one range of codes. Rows are sorted by code, so the rows of a range are a slice. For a wide range,
it is faster to compare the codes of all rows.

With 10⁶ items and a thousand values, a mask for one value takes 0.02 ms. A mask for 5 % of the
values takes 0.11 ms; a mask for half of the values also takes 0.11 ms. With one roaring bitmap for
each value, these three masks would take 0.3, 0.5 and 2.4 ms; with an index of SQLite, they would
take 0.3, 13 and 137 ms. A check of every item takes 800 ms.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.records import Facet, FacetValue

from .grammar import Comparison, Scalar

MISSING, NULL, FALSE, TRUE, LIST, OBJECT, FIRST_VALUE = range(7)
"""The codes of values that are neither a number nor a text. The codes of numbers and texts begin at
`FIRST_VALUE`."""

NUMBER_KIND, TEXT_KIND = FIRST_VALUE, FIRST_VALUE + 1
"""In an `Entry`, `NUMBER_KIND` is the kind of a number, and `TEXT_KIND` is the kind of a text. For
any other value, the kind is the value's code above."""

Entry = tuple[int, Any, int]
"""Kind of a value, the value, and its row. The value is a number, a text in UTF-8, or None."""

FREQUENT = 32
"""A code is frequent if at least 1 / `FREQUENT` of all rows have it. A frequent code has a bitmap,
which takes no more bytes than the row numbers."""


@dataclass(frozen=True, slots=True)
class Postings:
    """The rows of a field, sorted by value.

    A number is stored as a pair: the nearest float64 and, for an integer, the remainder. The pairs
    have the same order as the numbers.

    Attributes
    ----------
    nearest, left : (n,) float64 and (n,) int16. For each of the n distinct numbers: the nearest
        float64 and the remainder.
    text_starts : (m + 1,) the offset of each of the m distinct texts in ``texts``. The last value
        is the end of the last text.
    texts : the texts as UTF-8, one after another, ordered by code point.
    starts : (codes + 1,) the offset of each code's first entry in ``rows``. The last value is the
        length of ``rows``.
    rows : row numbers, uint32, ordered by code; the rows of one code are ascending.
    """

    nearest: NDArray[np.float64]
    left: NDArray[np.int16]
    text_starts: NDArray[np.int64]
    texts: NDArray[np.uint8]
    starts: NDArray[np.int64]
    rows: NDArray[np.uint32]

    @property
    def codes(self) -> range:
        """All codes."""
        return range(len(self.starts) - 1)

    def of(self, codes: range) -> NDArray[np.uint32]:
        """Return the rows whose codes are in a range."""
        return self.rows[self.starts[codes.start] : self.starts[codes.stop]]

    def count(self, codes: range) -> int:
        """Return the number of rows whose codes are in a range."""
        return int(self.starts[codes.stop] - self.starts[codes.start])

    def compared(self, comparison: Comparison, value: Scalar) -> range:
        """Return the codes that pass a comparison: ``eq``, ``gt``, ``gte``, ``lt`` or ``lte``."""
        if value is None or isinstance(value, bool):
            code = {None: NULL, False: FALSE, True: TRUE}[value]
            return range(code, code + 1)
        first_text = FIRST_VALUE + len(self.nearest)
        if isinstance(value, str):
            kind = range(first_text, len(self.starts) - 1)
            equal = self._equal_texts(value.encode())
        else:
            kind = range(FIRST_VALUE, first_text)
            equal = self._equal_numbers(value)
        first, after = kind.start + equal.start, kind.start + equal.stop
        match comparison:
            case "gt":
                return range(after, kind.stop)
            case "gte":
                return range(first, kind.stop)
            case "lt":
                return range(kind.start, first)
            case "lte":
                return range(kind.start, after)
            case _:
                return range(first, after)

    def equal_to(self, values: Iterable[Scalar]) -> list[range]:
        """Return the codes of ``values``, in any order; a value without a row has no code."""
        numbers: dict[float, None] = {}  # many values may be absent or repeated
        others: dict[Scalar, None] = {}
        for value in values:
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[value] = None
            else:
                others[value] = None
        found = [self.compared("eq", value) for value in others]
        given = list(numbers)
        nearest = np.array([float(value) for value in given], dtype=np.float64)
        first = np.searchsorted(self.nearest, nearest)
        after = np.searchsorted(self.nearest, nearest, side="right")
        return found + [
            self.compared("eq", given[place]) for place in np.flatnonzero(after > first).tolist()
        ]

    def _equal_numbers(self, value: float) -> range:
        """Return the range with the position of a number; the range is empty if no row has it."""
        nearest, left = _split(value)
        first = int(np.searchsorted(self.nearest, nearest))
        among = self.left[first : np.searchsorted(self.nearest, nearest, side="right")]
        before = int(np.searchsorted(among, left))
        until = int(np.searchsorted(among, left, side="right"))
        return range(first + before, first + until)

    def _equal_texts(self, text: bytes) -> range:
        """Return the range with the position of a text; the range is empty if no row has it."""
        places = range(len(self.text_starts) - 1)
        first = bisect_left(places, text, key=self._text)
        return range(first, first + (first < len(places) and self._text(first) == text))

    def _text(self, place: int) -> bytes:
        return self.texts[self.text_starts[place] : self.text_starts[place + 1]].tobytes()


def _split(value: float) -> tuple[float, int]:
    """Return the float64 nearest to a number, and the remainder; the remainder of a float is 0."""
    nearest = float(value)
    return nearest, value - int(nearest) if isinstance(value, int) else 0


@dataclass(frozen=True, slots=True)
class Column:
    """The index of one field of N rows.

    Attributes
    ----------
    values : each row once; the rows are ordered by the value of the field.
    codes : (N,) unsigned integers, the code of each row in ``values``.
    held : rows whose field is a list; a row occurs once for each distinct element. Elements are
        null, true, false, numbers and texts.
    frequent : (m,) the frequent codes in ``held``; see `FREQUENT`.
    bitmaps : (m, ⌈N / 8⌉) uint8, one bit per row for each frequent code; row 0 is the lowest bit.
    """

    values: Postings
    codes: NDArray[Any]
    held: Postings
    frequent: NDArray[np.int64]
    bitmaps: NDArray[np.uint8]

    @property
    def n_bytes(self) -> int:
        """Size in bytes, in memory and in a file."""
        return sum(part.nbytes for part in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        of_postings = {
            f"{name}.{part.name}": getattr(postings, part.name)
            for name, postings in (("values", self.values), ("held", self.held))
            for part in fields(Postings)
        }
        of_frequent = {"frequent": self.frequent, "bitmaps": self.bitmaps.ravel()}
        return {"codes": self.codes, **of_frequent, **of_postings}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Column:
        """Make a column from the result of `arrays`."""
        values, held = (
            Postings(**{part.name: arrays[f"{name}.{part.name}"] for part in fields(Postings)})
            for name in ("values", "held")
        )
        frequent = arrays["frequent"]
        bitmaps = arrays["bitmaps"].reshape(len(frequent), -(-len(arrays["codes"]) // 8))
        return cls(values, arrays["codes"], held, frequent, bitmaps)


def make_column(
    values: Iterable[Entry], held: Iterable[Entry], n_rows: int, most_bytes: float
) -> Column | None:
    """Make the index of a field; None if the index would take more than ``most_bytes``.

    Parameters
    ----------
    values : one entry for each row 0 to ``n_rows`` − 1, ordered by kind, value and row.
    held : entries of the rows whose value is a list: one entry for each distinct element of the
        list. The order is the order of ``values``.
    """
    every = _gathered(values, most_bytes)
    if every is None:
        return None
    n_codes = len(every.starts) - 1
    codes = np.empty(n_rows, dtype=np.min_scalar_type(n_codes))
    codes[every.rows] = np.repeat(np.arange(n_codes, dtype=codes.dtype), np.diff(every.starts))
    lists = _gathered(held if every.count(range(LIST, LIST + 1)) else (), most_bytes)
    column = None if lists is None else Column(every, codes, lists, *_frequent(lists, n_rows))
    return None if column is None or column.n_bytes > most_bytes else column


def _frequent(lists: Postings, n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the frequent codes, and the bitmap of each frequent code."""
    frequent = np.flatnonzero(np.diff(lists.starts) * FREQUENT >= n_rows)
    bitmaps = np.zeros((len(frequent), -(-n_rows // 8)), dtype=np.uint8)
    for bitmap, code in zip(bitmaps, frequent.tolist(), strict=True):
        mask = np.zeros(n_rows, dtype=bool)
        mask[lists.of(range(code, code + 1))] = True
        bitmap[:] = np.packbits(mask, bitorder="little")
    return frequent, bitmaps


def _gathered(entries: Iterable[Entry], most_bytes: float) -> Postings | None:
    """Make postings from sorted entries; None if the postings exceed ``most_bytes``."""
    nearest, left = array("d"), array("h")
    text_starts, texts = array("q", [0]), bytearray()
    counts, rows = array("q", [0] * FIRST_VALUE), array("I")
    for (kind, value), of_value in groupby(entries, key=itemgetter(0, 1)):
        before = len(rows)
        rows.extend([row for _, _, row in of_value])
        if kind < FIRST_VALUE:
            counts[kind] = len(rows) - before
            continue
        counts.append(len(rows) - before)
        if kind == NUMBER_KIND:
            number = _split(value)
            nearest.append(number[0])
            left.append(number[1])
        else:
            texts += value
            text_starts.append(len(texts))
        if 4 * len(rows) + len(texts) > most_bytes:
            return None
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Postings(
        np.array(nearest, np.float64),
        np.array(left, np.int16),
        np.array(text_starts, np.int64),
        np.frombuffer(bytes(texts), np.uint8),
        starts.astype(np.int64),
        np.array(rows, np.uint32),
    )


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
    ranked = [(_value(first, code), int(counts[code])) for code in _most_frequent(counts, most)]
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


def _most_frequent(counts: NDArray[np.int64], most: int) -> list[int]:
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
