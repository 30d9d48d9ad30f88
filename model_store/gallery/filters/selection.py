"""The rows that a search may find (`Allowed`): those that pass a filter, by field indexes.

If a condition allows few rows, the other conditions check only these rows. If all conditions allow
many rows, each condition compares its whole column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.filters.columns import FALSE, NULL, Column
from model_store.gallery.filters.grammar import And, Condition, Field, Filter, Not, Or
from model_store.messages import IndexedBy

Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

NO_FIELDS: Mapping[str, IndexedBy] = MappingProxyType({})

N_SAMPLED = 1_024
"""Number of rows sampled to estimate the share of selected rows. For a share of 0.2, the error is
below 0.04."""

_WIDE = 32
"""A selection is wide if it has at least 1 / `_WIDE` of all rows. The mask of a wide selection is
computed from the codes of all rows. The mask of a narrow selection is computed from the selected
rows only."""

_FEW = 8
"""If a selection has at most this many ranges, each code is compared with each range. If it has
more ranges, each code is looked up in a table."""


class Selection(Protocol):
    """Some of the rows 0 to N − 1."""

    @property
    def at_most(self) -> int:
        """An upper bound on the number of selected rows, known without counting."""

    def at(self, rows: Rows) -> Mask:
        """Return a mask (n,): True for each of ``rows`` (n,) that is selected."""

    def rows(self) -> Rows:
        """All selected rows, in any order; the time grows with `at_most`."""

    def mask(self) -> Mask:
        """A mask (N,) of the selected rows."""


class Allowed(Protocol):
    """An immutable set of allowed rows. The gallery has the rows 0 to N − 1."""

    @property
    def at_most(self) -> int:
        """An upper bound on the number of allowed rows, known without counting."""

    @property
    def share(self) -> float:
        """Estimated share of the N rows that is allowed; each call returns the same value."""

    @property
    def indexes(self) -> Mapping[str, IndexedBy]:
        """Field of the filter → where the field's index is stored."""

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending; the time grows with `at_most`."""

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""


class MaskedRows:
    """The rows that a mask (N,) selects; the mask becomes read-only. Implements `Allowed`."""

    def __init__(
        self, mask: NDArray[np.bool_], indexes: Mapping[str, IndexedBy] = NO_FIELDS
    ) -> None:
        self._mask = mask
        self._mask.flags.writeable = False
        self.at_most = int(np.count_nonzero(mask))
        self.share = self.at_most / max(len(mask), 1)
        self.indexes = indexes

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        return self._mask[rows]

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending."""
        return np.flatnonzero(self._mask)

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""
        return self._mask


def select(part: Filter, columns: Mapping[Field, Column], n_rows: int) -> Selection:
    """Return the rows that pass a filter.

    Parameters
    ----------
    part : the filter, with numbers converted by `as_stored`.
    columns : the index of each field in the filter, with ``n_rows`` rows.
    """
    return _selected(part, columns, n_rows, negated=False)


def estimated_share(selection: Selection, n_rows: int) -> float:
    """Estimate the share of selected rows; each call returns the same value.

    The share is 0 if ``n_rows`` is 0.
    """
    if not n_rows or isinstance(selection, _OfCodes | _OfHolders):
        return selection.at_most / max(n_rows, 1)
    sampled = np.random.default_rng(0).integers(0, n_rows, N_SAMPLED)
    return min(float(selection.at(sampled).mean()), selection.at_most / n_rows)


def fields_of(part: Filter) -> tuple[Field, ...]:
    """Return the distinct fields in a filter."""
    match part:
        case Condition():
            return (part.field,)
        case Not(inner):
            return fields_of(inner)
        case And(parts) | Or(parts):
            return tuple(dict.fromkeys(field for one in parts for field in fields_of(one)))


def _selected(
    part: Filter, columns: Mapping[Field, Column], n_rows: int, *, negated: bool
) -> Selection:
    match part:
        case Condition():
            return _of_condition(part, columns[part.field], negated=negated)
        case Not(inner):
            return _selected(inner, columns, n_rows, negated=not negated)
        case And(parts) | Or(parts):
            within = [_selected(one, columns, n_rows, negated=negated) for one in parts]
            every = isinstance(part, And) is not negated
            found = _merged(within, every=every)
            if len(found) == 1:
                return found[0]
            return _OfEvery(found, n_rows) if every else _OfAny(found, n_rows)


def _merged(parts: list[Selection], *, every: bool) -> list[Selection]:
    """Merge selections on the same column, for example the lower and the upper end of a range."""
    merged: dict[int, _OfCodes] = {}
    others: list[Selection] = []
    for part in parts:
        if not isinstance(part, _OfCodes):
            others.append(part)
            continue
        of_column = merged.setdefault(id(part.column), part)
        if of_column is not part:
            joined = of_column.both(part) if every else of_column.either(part)
            merged[id(part.column)] = joined
    return [*merged.values(), *others]


def _of_condition(condition: Condition, column: Column, *, negated: bool) -> Selection:
    """Return the rows that pass a comparison; with ``negated``, the rows that do not pass."""
    if condition.comparison == "has":
        codes = column.held.compared("eq", condition.values[0])
        return _OfHolders(column, codes, negated=negated)
    return _OfCodes(column, _codes(condition, column, negated=negated))


def _codes(condition: Condition, column: Column, *, negated: bool) -> list[range]:
    """Return the codes that pass a comparison; with ``negated``, the codes that do not pass."""
    every, values = column.values.codes, condition.values
    match condition.comparison:
        case "exists":
            # An item without a label has the label null.
            first = NULL if condition.field.column == "metadata" else FALSE
            codes = [range(first, every.stop)]
            negated ^= not values[0]
        case "in":
            codes = column.values.equal_to(values)
        case "ne":
            codes = [column.values.compared("eq", values[0])]
            negated = not negated
        case comparison:
            codes = [column.values.compared(comparison, values[0])]
    codes = _joined(codes)
    return _between(codes, every) if negated else codes


def _joined(codes: Iterable[range]) -> list[range]:
    """Merge ranges of codes into the smallest number of ranges, in ascending order."""
    joined: list[range] = []
    for part in sorted((part for part in codes if part), key=lambda part: part.start):
        if joined and part.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(part.stop, joined[-1].stop))
        else:
            joined.append(part)
    return joined


def _between(codes: list[range], every: range) -> list[range]:
    """Return the parts of the range ``every`` that are outside all ranges in ``codes``."""
    starts = [every.start, *(part.stop for part in codes)]
    stops = [*(part.start for part in codes), every.stop]
    return [range(*ends) for ends in zip(starts, stops, strict=True) if ends[0] < ends[1]]


class _OfCodes:
    """The rows whose codes are in one of several ranges."""

    def __init__(self, column: Column, codes: list[range]) -> None:
        self.column = column
        self._codes = [part for part in codes if column.values.count(part)]
        self.at_most = sum(column.values.count(part) for part in self._codes)

    def either(self, other: _OfCodes) -> _OfCodes:
        """The union with another selection on the same column."""
        return _OfCodes(self.column, _joined([*self._codes, *other._codes]))

    def both(self, other: _OfCodes) -> _OfCodes:
        """The intersection with another selection on the same column."""
        every = self.column.values.codes
        neither = [*_between(self._codes, every), *_between(other._codes, every)]
        return _OfCodes(self.column, _between(_joined(neither), every))

    def at(self, rows: Rows) -> Mask:
        return self._within(self.column.codes[rows])

    def rows(self) -> Rows:
        found = [self.column.values.of(part) for part in self._codes]
        return np.concatenate([np.empty(0, np.int64), *found])

    def mask(self) -> Mask:
        codes = self.column.codes
        if self.at_most * _WIDE >= len(codes):
            return self._within(codes)
        mask = np.zeros(len(codes), dtype=bool)
        for part in self._codes:
            mask[self.column.values.of(part)] = True
        return mask

    def _within(self, codes: NDArray[np.unsignedinteger]) -> Mask:
        if len(self._codes) > _FEW:
            found: Mask = self._table[codes]
            return found
        within = np.zeros(codes.shape, dtype=bool)
        for part in self._codes:
            of_part = codes >= part.start
            if part.stop < self.column.values.codes.stop:
                of_part &= codes < part.stop
            within |= of_part
        return within

    @cached_property
    def _table(self) -> Mask:
        """A mask over all codes: whether each code is in one of the ranges."""
        table = np.zeros(self.column.values.codes.stop, dtype=bool)
        for part in self._codes:
            table[part.start : part.stop] = True
        return table


class _OfHolders:
    """The rows whose list contains a value; with ``negated``, all rows except these rows."""

    def __init__(self, column: Column, codes: range, *, negated: bool) -> None:
        self._holders = column.held.of(codes)
        self._n_rows, self._negated = len(column.codes), negated
        n = len(self._holders)
        self.at_most = self._n_rows - n if negated else n
        places = np.flatnonzero((column.frequent >= codes.start) & (column.frequent < codes.stop))
        self._bitmap = column.bitmaps[places[0]] if places.size else None

    def at(self, rows: Rows) -> Mask:
        if self._bitmap is not None:
            bits = self._bitmap[rows >> 3] >> (rows & 7).astype(np.uint8)
            return np.asarray(bits & 1 != self._negated)
        if not len(self._holders):
            return np.full(rows.shape, self._negated)
        places = np.searchsorted(self._holders, rows)
        found = self._holders[np.minimum(places, len(self._holders) - 1)] == rows
        return np.asarray(found ^ self._negated)

    def rows(self) -> Rows:
        if self._negated:
            return np.flatnonzero(self.mask())
        return self._holders.astype(np.int64)

    def mask(self) -> Mask:
        if self._bitmap is not None:
            mask = np.unpackbits(self._bitmap, count=self._n_rows, bitorder="little").view(bool)
            return np.logical_not(mask, out=mask) if self._negated else mask
        mask = np.full(self._n_rows, self._negated)
        mask[self._holders] = not self._negated
        return mask


class _OfEvery:
    """The intersection of selections; all rows if there are no selections."""

    def __init__(self, parts: list[Selection], n_rows: int) -> None:
        self._parts, self._n_rows = sorted(parts, key=lambda part: part.at_most), n_rows
        self.at_most = min([n_rows, *(part.at_most for part in parts)])

    def at(self, rows: Rows) -> Mask:
        found = np.ones(rows.shape, dtype=bool)
        for part in self._parts:
            found &= part.at(rows)
        return found

    def rows(self) -> Rows:
        if not self._parts:
            return np.arange(self._n_rows)
        narrowest, *others = self._parts
        rows = narrowest.rows()
        for part in others:
            rows = rows[part.at(rows)]
        return rows

    def mask(self) -> Mask:
        if self.at_most * _WIDE >= self._n_rows:
            mask = np.ones(self._n_rows, dtype=bool)
            for part in self._parts:
                mask &= part.mask()
            return mask
        mask = np.zeros(self._n_rows, dtype=bool)
        mask[self.rows()] = True
        return mask


class _OfAny:
    """The union of selections."""

    def __init__(self, parts: list[Selection], n_rows: int) -> None:
        self._parts, self._n_rows = parts, n_rows
        self.at_most = min(n_rows, sum(part.at_most for part in parts))

    def at(self, rows: Rows) -> Mask:
        found = np.zeros(rows.shape, dtype=bool)
        for part in self._parts:
            found |= part.at(rows)
        return found

    def rows(self) -> Rows:
        return np.unique(np.concatenate([np.empty(0, np.int64), *(p.rows() for p in self._parts)]))

    def mask(self) -> Mask:
        mask = np.zeros(self._n_rows, dtype=bool)
        for part in self._parts:
            mask |= part.mask()
        return mask
