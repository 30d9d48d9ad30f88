"""A table of PostgreSQL with pgvector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model_store.stores.store import Direction, label_of
from model_store.vector_queries import NeighbourList


@dataclass(frozen=True, slots=True)
class PgvectorStore:
    """A table of PostgreSQL with pgvector; uses an index for cosine distance if there is one.

    Attributes
    ----------
    connection : a ``psycopg.Connection``.
    table : name of the table, optionally with its schema.
    vector, id, label : names of columns.
    where : a condition in SQL. The condition becomes part of the SQL statement, so never pass
        untrusted text.
    """

    connection: Any
    table: str
    vector: str = "embedding"
    id: str = "id"
    label: str = "label"
    where: str | None = None

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` nearest rows, by cosine."""
        columns = f"{_quoted(self.id)}, {_quoted(self.label)}"
        distance = f"{_quoted(self.vector)} <=> %s::vector"
        condition = "" if self.where is None else f"WHERE {self.where} "
        statement = (
            f"SELECT {columns}, 1 - ({distance}) FROM {_quoted(self.table)} {condition}"  # noqa: S608 - quoted, but for the caller's own condition
            f"ORDER BY {distance} LIMIT %s"
        )
        text = str(direction.tolist())
        with self.connection.transaction(), self.connection.cursor() as cursor:
            # an HNSW index returns at most `ef_search` rows; pgvector allows at most 1000
            wide = str(min(max(n, 40), 1000))
            cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", (wide,))
            found = cursor.execute(statement, (text, text, n)).fetchall()
        return NeighbourList(
            [str(row[0]) for row in found],
            [label_of(row[1]) for row in found],
            similarities=[float(row[2]) for row in found],
        )


def _quoted(name: str) -> str:
    """Quote each part of a dotted name."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))
