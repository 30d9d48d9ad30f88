"""Append-only entries: decisions of reviewers on queries, and how far reviewers agree.

Decisions are exported and imported as CSV for spreadsheets, and as JSONL for programs.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from model_store.errors import ConfigError, DecisionNotFound
from model_store.gallery.protocol import Retry
from model_store.text_values import from_cell, to_cell

DecisionKind = Literal["this_item", "not_this_item", "none_of_these", "that_item", "new"]
DECISIONS: tuple[DecisionKind, ...] = get_args(DecisionKind)
"""``this_item`` confirms a found item, and ``not_this_item`` rejects a found item.
``none_of_these``: nothing in the gallery matches. ``that_item``: the match is a given item of the
gallery, whether it was found or not. ``new``: nothing matches, and the query should be added to the
gallery."""

Selection = Literal["volunteered", "ordered", "drawn"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
"""Selection of a reviewed query. ``volunteered``: the reviewer chose the query, possibly because
its answer is wrong. ``ordered``: the review queue selected the query because of the verdict.
``drawn``: the query was drawn at random with a known probability."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A decision on a served pair of a query and an item.

    Attributes
    ----------
    item_id : id of the item.
    correct : whether the item is a true match.
    rank : rank of the item among the candidates, from 1.
    match_probability : match probability, at the gallery's share of absent queries.
    match_log_odds : log-odds at this share, before the correction by feedback.
    match_fingerprint : origin of the log-odds, see `Calibration.match_fingerprint`.
    """

    item_id: str
    correct: bool
    rank: int
    match_probability: float
    match_log_odds: float
    match_fingerprint: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision on a query.

    Attributes
    ----------
    gallery : gallery that gave the answer.
    bundle : bundle that gave the answer.
    query_id : id of the query.
    decision : see `DECISIONS`.
    item_id : id of the item in the decision; None without an item.
    label : label of this item at the time of the decision; None without an item.
    reviewer : name that the reviewer gave.
    comment : comment of the reviewer.
    pairs : decisions on found items that follow from this decision.
    decided_at : time of the decision, seconds since 1970.
    number : number of the decision; 0 before the decision is stored.
    undone_at : time of the undo, seconds since 1970; None if the decision is not undone.
    selection : how the query was chosen for review, see `SELECTIONS`.
    draw_probability : probability of the query's draw; the inverse is the weight of the decision.
        None if the query was not drawn, or was drawn by an early release that used one probability
        for all queries.
    """

    gallery: str
    bundle: str
    query_id: str
    decision: DecisionKind
    item_id: str | None
    label: str | None
    reviewer: str | None
    comment: str | None
    pairs: tuple[Pair, ...]
    decided_at: float
    number: int = 0
    undone_at: float | None = None
    selection: Selection = "volunteered"
    draw_probability: float | None = None

    def row(self) -> tuple[Any, ...]:
        """Return the columns of the table, except the first."""
        values = asdict(self)
        values["pairs"] = json.dumps(values["pairs"])
        return tuple(values[name] for name in COLUMNS[1:])

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Decided:
        """Read a row of the table."""
        values = dict(zip(COLUMNS, row, strict=True))
        pairs = tuple(Pair(**pair) for pair in json.loads(values.pop("pairs")))
        return cls(pairs=pairs, **values)


COLUMNS = ("number", *(one.name for one in fields(Decided) if one.name != "number"))
"""Columns of the table; their order in a file may differ."""

_LISTED = ", ".join(COLUMNS)


def moment() -> float:
    """Return seconds since 1970, rounded to microseconds, which CSV and JSONL preserve."""
    return datetime.now(UTC).timestamp()


def add(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Append a decision and return it with its number."""
    marks = ",".join("?" * len(decided.row()))
    names = ", ".join(COLUMNS[1:])
    cursor = connection.execute(
        f"INSERT INTO decisions ({names}) VALUES ({marks})",  # noqa: S608
        decided.row(),
    )
    return replace(decided, number=int(cursor.lastrowid or 0))


def find(connection: sqlite3.Connection, gallery: str, number: int) -> Decided:
    """Return a decision of a gallery, or raise `DecisionNotFound`."""
    row = connection.execute(
        f"SELECT {_LISTED} FROM decisions WHERE gallery = ? AND number = ?",  # noqa: S608
        (gallery, number),
    ).fetchone()
    if row is None:
        raise DecisionNotFound(
            f"No decision {number} on this gallery is kept. `GET …/feedback` lists them."
        )
    return Decided.of_row(row)


_REQUEST_S = 24 * 3600.0
"""Seconds for which the Idempotency-Key of a decision is kept."""


def number_of(connection: sqlite3.Connection, gallery: str, retry: Retry, now: float) -> int | None:
    """Return the number of the decision that the request stored before; None for a new request.

    Raises
    ------
    KeyReused : another request had the key.
    """
    row = connection.execute(
        "SELECT request, number FROM decision_requests "
        "WHERE gallery = ? AND request_key = ? AND kept_at > ?",
        (gallery, retry.key, now - _REQUEST_S),
    ).fetchone()
    if row is None:
        return None
    retry.require_same(row[0])
    return int(row[1])


def note_request(connection: sqlite3.Connection, kept: Decided, retry: Retry) -> None:
    """Store the key of the request that made a decision; delete outdated keys."""
    connection.execute(
        "DELETE FROM decision_requests WHERE kept_at <= ?", (kept.decided_at - _REQUEST_S,)
    )
    connection.execute(
        "INSERT INTO decision_requests VALUES (?, ?, ?, ?, ?)",
        (kept.gallery, retry.key, retry.request, kept.number, kept.decided_at),
    )


def undo(connection: sqlite3.Connection, decided: Decided, now: float) -> Decided:
    """Undo a decision; it remains in the list."""
    connection.execute("UPDATE decisions SET undone_at = ? WHERE number = ?", (now, decided.number))
    return replace(decided, undone_at=now)


def listed(
    connection: sqlite3.Connection, where: Mapping[str, Any], after: int = 0, limit: int = -1
) -> list[Decided]:
    """Return decisions in order of their numbers.

    Parameters
    ----------
    where : required values of columns, for example ``gallery``.
    after : only decisions with a greater number.
    limit : maximum number of decisions; −1 for all.
    """
    conditions = " AND ".join(f"{name} = ?" for name in where) or "1"
    rows = connection.execute(
        f"SELECT {_LISTED} FROM decisions WHERE {conditions} AND number > ? "  # noqa: S608
        "ORDER BY number LIMIT ?",
        (*where.values(), after, limit),
    )
    return [Decided.of_row(row) for row in rows]


def votes(decided: Sequence[Decided]) -> list[Decided]:
    """Return each reviewer's last decision that is not undone.

    All decisions without a reviewer count as decisions of one reviewer.
    """
    last = {one.reviewer: one for one in decided if one.undone_at is None}
    return list(last.values())


def agreed(decided: Sequence[Decided], wanted: int) -> list[Decided]:
    """Return the largest group of equal decisions; empty if fewer than ``wanted`` agree.

    Two decisions for an item agree if the items have the same label or are the same item.
    `none_of_these` and `new` agree with each other.
    """
    outcomes: dict[tuple[str, ...], list[Decided]] = defaultdict(list)
    for vote in votes(decided):
        outcomes[_outcome(vote)].append(vote)
    most = max(outcomes.values(), key=len, default=[])
    return most if len(most) >= wanted else []


def n_missing(decided: Sequence[Decided], wanted: int) -> int:
    """Return the number of additional reviewers who must agree; at least one."""
    most = next(
        (n for n in range(wanted, 0, -1) if agreed(decided, n)),
        0,
    )
    return max(wanted - most, 1)


def _outcome(vote: Decided) -> tuple[str, ...]:
    if vote.decision in {"none_of_these", "new"}:
        return ("nothing",)
    if vote.decision == "not_this_item":
        return ("not", str(vote.item_id))
    named = ("item", str(vote.item_id)) if vote.label is None else ("label", vote.label)
    return ("is", *named)


CSV_COLUMNS = (*(name for name in COLUMNS[1:] if name != "pairs"), "pairs")
"""Columns of the CSV. Times use RFC 3339. The column ``pairs`` is JSON with the served values of
each item, see `Pair`."""

_NEEDED = ("gallery", "bundle", "query_id", "decision")
_OPTIONAL = ("item_id", "label", "reviewer", "comment")


def to_jsonl(decided: Iterable[Decided]) -> str:
    """Return decisions as text, one JSON object per line."""
    return "".join(json.dumps(_fields(one), ensure_ascii=False) + "\n" for one in decided)


def to_csv(decided: Iterable[Decided]) -> str:
    """Return decisions as CSV with a header; texts that look like formulas are escaped."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
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
    return {name: fields[name] for name in CSV_COLUMNS}


def _json(number: int, text: str) -> Any:  # noqa: ANN401 - whatever it holds
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"Line {number} is not JSON: {error}.") from None


def _read(number: int, fields: Mapping[str, Any]) -> Decided:
    if not isinstance(fields, dict):
        raise ConfigError(f"Line {number} is not a decision, wanted an object with {CSV_COLUMNS}.")
    missing = [name for name in _NEEDED if not isinstance(fields.get(name), str)]
    if missing or fields["decision"] not in DECISIONS:
        raise ConfigError(
            f"Line {number} is not a decision: wanted texts for {_NEEDED}, and one of {DECISIONS} "
            f"as the decision, not {fields.get('decision')!r}."
        )
    if (selection := fields.get("selection") or "volunteered") not in SELECTIONS:
        raise ConfigError(f"Line {number}: `selection` is {selection!r}, not of {SELECTIONS}.")
    unknown = sorted(fields.keys() - {*CSV_COLUMNS})
    if unknown:
        raise ConfigError(f"Line {number} has unknown fields {unknown}; known are {CSV_COLUMNS}.")
    try:
        pairs = tuple(Pair(**pair) for pair in fields.get("pairs") or ())
        at, undone_at = (_time(fields.get(name)) for name in ("decided_at", "undone_at"))
        drawn_with = _probability(fields.get("draw_probability"))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Line {number} cannot be read: {error}.") from None
    known = dict.fromkeys(_OPTIONAL) | dict(fields)
    known |= {
        "pairs": pairs,
        "decided_at": moment() if at is None else at,
        "undone_at": undone_at,
        "selection": selection,
        "draw_probability": drawn_with,
    }
    return Decided(**known)


def _probability(value: str | float | None) -> float | None:
    if value is None:
        return None
    probability = float(value)
    if not 0 < probability <= 1:
        raise ValueError(f"`draw_probability` is {probability}; give a number above 0, at most 1")
    return probability


def _time(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
