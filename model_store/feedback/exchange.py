"""Export and import of decisions: CSV for spreadsheets, JSONL for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from model_store.errors import ConfigError
from model_store.feedback.decisions import DECISIONS, SELECTIONS, Decided, Pair, moment
from model_store.text_values import from_cell, to_cell

FIELDS = (
    "gallery",
    "bundle",
    "query_id",
    "decision",
    "item_id",
    "label",
    "reviewer",
    "comment",
    "decided_at",
    "undone_at",
    "selection",
    "draw_probability",
    "pairs",
)
"""Columns of the CSV. Times use RFC 3339. The column ``pairs`` is JSON with the served values of
each item, see `Pair`."""

_NEEDED = ("gallery", "bundle", "query_id", "decision")


def to_jsonl(decided: Iterable[Decided]) -> str:
    """Return decisions as text, one JSON object per line."""
    return "".join(json.dumps(_fields(one), ensure_ascii=False) + "\n" for one in decided)


def to_csv(decided: Iterable[Decided]) -> str:
    """Return decisions as CSV with a header; texts that look like formulas are escaped."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    for one in decided:
        fields = _fields(one)
        cells = {name: to_cell(text) for name, text in fields.items() if isinstance(text, str)}
        writer.writerow({**fields, **cells, "pairs": json.dumps(fields["pairs"])})
    return text.getvalue()


def from_jsonl(text: str) -> list[Decided]:
    """Read decisions in the format of `to_jsonl`.

    Raises
    ------
    ConfigError : a line is not a decision; the message contains the line number.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [_read(number, _json(number, line)) for number, line in lines]


def from_csv(text: str) -> list[Decided]:
    """Read CSV from `to_csv` or from a spreadsheet.

    Raises
    ------
    ConfigError : a line is not a decision; the message contains the line number.
    """
    found = []
    reader = csv.DictReader(io.StringIO(text))
    names = [name for name in reader.fieldnames or () if name]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"Line 1 has several columns of one name: {twice}. Keep one column for each name."
        )
    for row in reader:
        number = reader.line_num
        # `csv` puts the extra values of a too long row under None. Spreadsheets may add empty
        # values.
        if any(row.pop(None, None) or ()):
            raise ConfigError(
                f"Line {number} has more values than the first line has names. Put quotes "
                "around values that contain commas."
            )
        cells = {name: cell for name, cell in row.items() if name}
        fields: dict[str, Any] = {n: from_cell(one) if one else None for n, one in cells.items()}
        fields["pairs"] = _json(number, fields.get("pairs") or "[]")
        found.append(_read(number, fields))
    return found


def _fields(decided: Decided) -> dict[str, Any]:
    fields = asdict(decided)
    for name in ("decided_at", "undone_at"):
        at = fields[name]
        fields[name] = None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
    return {name: fields[name] for name in FIELDS}


def _json(number: int, text: str) -> Any:  # noqa: ANN401 - whatever it holds
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"Line {number} is not JSON: {error}.") from None


def _read(number: int, fields: Mapping[str, Any]) -> Decided:
    if not isinstance(fields, dict):
        raise ConfigError(f"Line {number} is not a decision, wanted an object with {FIELDS}.")
    missing = [name for name in _NEEDED if not isinstance(fields.get(name), str)]
    if missing or fields["decision"] not in DECISIONS:
        raise ConfigError(
            f"Line {number} is not a decision: wanted texts for {_NEEDED}, and one of {DECISIONS} "
            f"as the decision, not {fields.get('decision')!r}."
        )
    if (selection := fields.get("selection") or "volunteered") not in SELECTIONS:
        raise ConfigError(f"Line {number}: `selection` is {selection!r}, not of {SELECTIONS}.")
    unknown = sorted(fields.keys() - {*FIELDS})
    if unknown:
        raise ConfigError(f"Line {number} has unknown fields {unknown}; known are {FIELDS}.")
    try:
        pairs = tuple(Pair(**pair) for pair in fields.get("pairs") or ())
        at, undone_at = (_time(fields.get(name)) for name in ("decided_at", "undone_at"))
        drawn_with = _probability(fields.get("draw_probability"))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Line {number} cannot be read: {error}.") from None
    return Decided(
        gallery=fields["gallery"],
        bundle=fields["bundle"],
        query_id=fields["query_id"],
        decision=fields["decision"],
        item_id=fields.get("item_id"),
        label=fields.get("label"),
        reviewer=fields.get("reviewer"),
        comment=fields.get("comment"),
        pairs=pairs,
        decided_at=moment() if at is None else at,
        undone_at=undone_at,
        selection=selection,
        draw_probability=drawn_with,
    )


def _probability(value: str | float | None) -> float | None:
    if value is None:
        return None
    probability = float(value)
    if not 0 < probability <= 1:
        raise ValueError(f"`draw_probability` is {probability}; give a number above 0, at most 1")
    return probability


def _time(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
