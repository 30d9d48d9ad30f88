"""Read the tables that data sets store in text files."""

from __future__ import annotations

from pathlib import Path

from model_store.errors import DatasetError


def rows_of(path: Path, n_columns: int, *, skip: int = 0) -> list[list[str]]:
    """Return the rows of a table with ``n_columns`` columns; the last column may contain blanks.

    Parameters
    ----------
    skip : number of lines before the first row.

    Raises
    ------
    DatasetError : a row has too few columns.
    """
    lines = path.read_text(encoding="utf-8").splitlines()[skip:]
    rows = [line.split(maxsplit=n_columns - 1) for line in lines if line.strip()]
    for number, row in enumerate(rows, start=skip + 1):
        if len(row) != n_columns:
            raise DatasetError(
                f"{path}, line {number}: found {len(row)} columns, wanted {n_columns}. Fetch the "
                "file again."
            )
    return [[word.strip() for word in row] for row in rows]
