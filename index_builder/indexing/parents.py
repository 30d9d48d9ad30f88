"""Reads the parents of labels from a table, or from metadata fields of the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from index_builder.indexing.sources.manifest import lines_of, text_of
from model_store.decision import Hierarchy
from model_store.errors import DatasetError
from model_store.gallery import Gallery
from model_store.gallery.entities import parts_of

COLUMNS = frozenset({"label", "parent"})

_AT_ONCE = 10_000
"""Number of items whose metadata is read in one step."""


@dataclass(frozen=True, slots=True)
class Parents:
    """The source of the labels' parents: a table or metadata fields; empty if there are no parents.

    Attributes
    ----------
    table : see `read_parents`.
    fields : names of metadata fields, one for each level of parents; the finest level comes first.
    """

    table: Path | None = None
    fields: tuple[str, ...] = ()

    def of(self, gallery: Gallery) -> Hierarchy | None:
        """Return the hierarchy of a gallery's labels; None if there is neither a table nor a field.

        Raises
        ------
        DatasetError : parents contradict each other, or no label of the gallery has a parent.
        """
        if self.table is None and not self.fields:
            return None
        if self.table is not None:
            hierarchy, where = read_parents(self.table), self.table.name
        else:
            hierarchy, where = _of_items(gallery, self.fields), f"--levels {','.join(self.fields)}"
        if not (hierarchy.of_labels(gallery.labels) >= 0).any():
            some = ", ".join(map(repr, gallery.labels[:3])) or "none"
            raise DatasetError(
                f"{where}: no label of the gallery has a parent. Its labels are {some} …; use "
                "the same spelling."
            )
        return hierarchy


NO_PARENTS = Parents()
"""Neither a table nor metadata fields: no label has a parent."""


def read_parents(path: Path) -> Hierarchy:
    """Read a table of labels and their parents: CSV, JSONL or Parquet.

    Each line has a ``label`` and its ``parent``. A parent can have a parent too. The level of a
    parent is the length of the longest path from the parent down to a label. So the level of a
    parent is always above the levels of its children. The number of a level is also the name of the
    level. An item can have a parent as its label, if no finer label is known.

    Raises
    ------
    DatasetError : a line is invalid, a label has two parents, or a label is its own ancestor.
    """
    parent_of: dict[str, str] = {}
    for origin, fields in lines_of(path, COLUMNS):
        label, parent = (text_of(fields, name, origin) for name in ("label", "parent"))
        if label is None or parent is None:
            raise DatasetError(
                f"{origin}: wanted a label and its parent; the columns here are "
                f"{', '.join(map(repr, fields))}. Leave out labels without a parent."
            )
        if parent_of.setdefault(label, parent) != parent:
            raise DatasetError(
                f"{origin}: {label!r} has the parent {parent!r}, but {parent_of[label]!r} on an "
                "earlier line. Keep one parent."
            )
    lines = {name: _line(name, parent_of, path) for name in {*parent_of, *parent_of.values()}}
    heights: dict[str, int] = {}
    for line in lines.values():
        for height, name in enumerate(line):
            heights[name] = max(heights.get(name, 0), height)
    n_levels = max(heights.values(), default=0)
    of_label: dict[str, list[str | None]] = {}
    for name in sorted(lines):
        above = {heights[one]: one for one in lines[name]}
        of_label[name] = [above.get(level) for level in range(1, n_levels + 1)]
    return Hierarchy.of([str(level) for level in range(1, n_levels + 1)], of_label)


def _line(name: str, parent_of: Mapping[str, str], path: Path) -> list[str]:
    """Return a label and all its ancestors, in ascending order."""
    line = [name]
    while line[-1] in parent_of:
        parent = parent_of[line[-1]]
        if parent in line:
            raise DatasetError(
                f"{path.name}: {parent!r} is its own ancestor ({' → '.join([*line, parent])})."
            )
        line.append(parent)
    return line


def _of_items(gallery: Gallery, fields: Sequence[str]) -> Hierarchy:
    """Return the hierarchy from metadata fields of the items.

    Raises
    ------
    DatasetError : items of one label have different parents.
    """
    found: dict[str, list[str | None]] = {}
    for rows in parts_of(gallery.rows(), _AT_ONCE):
        for item in gallery.items(rows):
            if item.label is None:
                continue
            known = found.setdefault(item.label, [None] * len(fields))
            for level, field in enumerate(fields):
                value = item.metadata.get(field)
                if value is None or value == "":
                    continue
                if known[level] not in {None, str(value)}:
                    raise DatasetError(
                        f"The items of {item.label!r} have the {field} {known[level]!r}, and "
                        f"{item.id!r} has {value!r}. All items of a label need the same value."
                    )
                known[level] = str(value)
    return Hierarchy.of(fields, found)
