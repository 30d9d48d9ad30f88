"""Tables: rows are chosen and put together in every column."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.table import SHARED, Rows, Table


@dataclass(frozen=True, slots=True)
class Inner(Table):
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outer(Table):
    sources: tuple[str, ...] | None
    names: tuple[str, ...]
    numbers: NDArray[np.int64]
    inner: Inner
    unit: str = field(default="m", metadata=SHARED)


def outer(n: int, *, unit: str = "m", sources: bool = False) -> Outer:
    names = tuple(f"{unit}{row}" for row in range(n))
    inner = Inner(np.arange(n) / 2)
    return Outer(names if sources else None, names, np.arange(2 * n).reshape(n, 2), inner, unit)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([2, 0, 2], [2, 0, 2]),
        (np.array([3]), [3]),
        (range(1, 3), [1, 2]),
        ([], []),
        (np.array([True, False, False, True]), [0, 3]),
        (np.zeros(4, dtype=bool), []),
        (slice(1, None), [1, 2, 3]),
        (slice(None, None, -2), [3, 1]),
    ],
)
def test_rows_of_every_column(rows: Rows, expected: list[int]) -> None:
    table = outer(4, sources=True)
    found = table.at(rows)
    assert len(found) == len(expected)
    assert found.names == found.sources == tuple(table.names[row] for row in expected)
    assert found.numbers.tolist() == table.numbers[expected].tolist()
    assert found.inner.values.tolist() == table.inner.values[expected].tolist()
    assert found.unit == "m"


def test_an_unknown_column_stays_unknown() -> None:
    table = outer(3)
    assert len(table) == 3
    assert table.at([1]).sources is None
    assert Outer.concatenate([table, table]).sources is None


def test_the_rows_of_several_tables() -> None:
    table = outer(3, sources=True)
    both = Outer.concatenate([table.at([2]), table.at([]), table.at([0, 1])])
    assert both.names == both.sources == ("m2", "m0", "m1")
    assert both.numbers.tolist() == table.numbers[[2, 0, 1]].tolist()
    assert both.inner.values.tolist() == [1.0, 0.0, 0.5]


def test_values_for_all_rows_must_agree() -> None:
    with pytest.raises(ValueError, match="unit differs between tables of Outer"):
        Outer.concatenate([outer(1), outer(1, unit="km")])
