"""Pandas and Arrow tables of records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from model_store.installation import how_to_install

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row = Mapping[str, Any]


def to_pandas(records: Iterable[object]) -> pd.DataFrame:
    """Return a row for each record; a nested record becomes columns ``outer.inner``.

    Parameters
    ----------
    records : answers, items, decisions or other records of the library or the client.

    Raises
    ------
    TypeError : something else.
    ImportError : pandas is not installed.
    """
    rows = [row_of(one) for one in records]
    try:
        import pandas as pd  # noqa: PLC0415 - slow, and an extra
    except ImportError as error:
        raise ImportError(f"Tables need pandas. {how_to_install('tables')}") from error
    return pd.DataFrame(rows)


def to_arrow(records: Iterable[object]) -> pa.Table:
    """Return an Arrow table with a row for each record; lists become JSON text.

    A column whose values have no common type in Arrow, such as numbers and texts, becomes JSON
    text, too.

    Raises
    ------
    TypeError : not records.
    ImportError : pyarrow is not installed.
    """
    rows = [row_of(one) for one in records]
    try:
        import pyarrow as pa  # noqa: PLC0415 - slow, and an extra
    except ImportError as error:
        raise ImportError(f"Arrow tables need pyarrow. {how_to_install('tables')}") from error

    def column(values: list[Any]) -> pa.Array:
        try:
            return pa.array([_plain(one) for one in values])
        except (pa.ArrowException, OverflowError):  # values of several types, or large integers
            return pa.array([None if one is None else _json(one) for one in values], pa.string())

    return pa.table({name: column([row.get(name) for row in rows]) for name in columns_of(rows)})


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows, in the order in which they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def row_of(record: object) -> dict[str, Any]:
    """Return a record as one flat row."""
    if isinstance(record, BaseModel):
        return dict(_flat("", record.model_dump()))
    if isinstance(record, Mapping):
        return dict(_flat("", record))
    if is_dataclass(record) and not isinstance(record, type):
        return dict(_flat("", _as_mappings(record)))
    raise TypeError(
        f"A row cannot be made from {type(record).__name__} {repr(record)[:80]}. Wanted: records, "
        "such as answers, items or decisions."
    )


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(f"{name}.", value)
        else:
            yield name, value


def _as_mappings(value: Any) -> Any:  # noqa: ANN401 - any cell
    """Return dataclasses as mappings, and exceptions as their messages.

    Unlike ``dataclasses.asdict``, this copies no other value: an exception cannot always be copied.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _as_mappings(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _as_mappings(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_mappings(one) for one in value]
    return str(value) if isinstance(value, Exception) else value


def _plain(value: Any) -> Any:  # noqa: ANN401 - any cell
    """Return a cell with a type that Arrow has; lists and mappings become JSON text."""
    return _json(value) if isinstance(value, list | tuple | dict) else value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
