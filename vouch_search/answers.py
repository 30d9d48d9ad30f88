"""Answers of searches: `Answer` to one query, `Answers` to many, and tables of records."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from pydantic import BaseModel, PrivateAttr

from model_store.installation import how_to_install
from service import schemas

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Per = Literal["query", "result"]
"""The content of a table row: one query (``query``), or one result of a query (``result``)."""

Picture = tuple[bytes, str]
"""The bytes of a picture and its media type."""

PictureOf = Callable[[str], Picture | None]
"""Function that returns the thumbnail of an item id, or None."""

N_SHOWN = 10
"""Maximum number of rows that a notebook shows: results of an answer, or answers of a list."""


class Answer(schemas.SearchAnswer):
    """The answer to one query, with the same fields as the JSON answer of the service.

    ``print(answer)`` gives one line. A notebook shows the results with their pictures.
    """

    _query: str = PrivateAttr(default="image")
    _picture_of: PictureOf | None = PrivateAttr(default=None)

    @property
    def query_name(self) -> str:
        """The path, file name or text of the query; ``image`` for bytes, pictures and arrays."""
        return self._query

    @classmethod
    def of(cls, record: schemas.SearchAnswer, query: str, picture_of: PictureOf | None) -> Answer:
        """Make an answer from a record, the query's name and a source of thumbnails."""
        answer = cls.model_construct(record.model_fields_set, **record.__dict__)
        answer._query, answer._picture_of = query, picture_of
        return answer

    def __getstate__(self) -> dict[Any, Any]:
        """Return the answer without its source of thumbnails, which cannot be pickled."""
        state = super().__getstate__()
        private = {**state["__pydantic_private__"], "_picture_of": None}
        return {**state, "__pydantic_private__": private}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy the answer; both answers share the source of thumbnails, which cannot be copied."""
        memo = {} if memo is None else memo
        memo[id(self._picture_of)] = self._picture_of
        return super().__deepcopy__(memo)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each result.

        Raises
        ------
        ImportError : pandas is not installed.
        """
        return to_pandas(_result_rows(self))

    def to_arrow(self) -> pa.Table:
        """Return a row for each result, as an Arrow table.

        Raises
        ------
        ImportError : pyarrow is not installed.
        """
        return to_arrow(_result_rows(self))

    def __repr__(self) -> str:
        return f"<Answer {self}>"

    def __str__(self) -> str:
        if not self.results:
            return f"{self.verdict}: {self.reason or 'no results'}"
        first, n = self.results[0], len(self.results)
        label = "" if first.label is None else f" ({first.label})"
        others = "" if n == 1 else f", and {n - 1} more"
        return f"{self.verdict}: {first.id}{label}{_probability(first, ', P(match) = ')}{others}"

    def _repr_html_(self) -> str:
        lines = [f"<b>{escape(self.verdict)}</b>"]
        if self.no_match_probability is not None:
            lines.append(f"P(no match) {self.no_match_probability:.3f}")
        if self.query.uncertainty.percentile is not None:
            lines.append(f"more uncertain than {self.query.uncertainty.percentile:.0f} %")
        if self.reason is not None:
            lines.append(escape(self.reason))
        cells = "".join(map(self._figure, self.results[:N_SHOWN]))
        return f'<p>{"; ".join(lines)}</p><div style="display:flex;flex-wrap:wrap">{cells}</div>'

    def _figure(self, result: schemas.Result) -> str:
        """Return the ``<figure>`` of a result; labels and ids are escaped."""
        caption = [escape(result.label or result.id), _probability(result, "P(match) ")]
        return (
            '<figure style="margin:4px;width:120px;text-align:center">'
            f"{self._image(result)}<figcaption>"
            f"{result.rank}. {'<br>'.join(filter(None, caption))}</figcaption></figure>"
        )

    def _image(self, result: schemas.Result, width: int = 112) -> str:
        """Return the ``<img>`` of a result; empty if its thumbnail cannot be read."""
        try:
            picture = None if self._picture_of is None else self._picture_of(result.id)
        except Exception:  # a notebook shows the answer also if the gallery is closed or is lost
            picture = None
        if picture is None:
            return ""
        return f'<img alt="{escape(result.id)}" width="{width}" src="{data_uri(picture)}">'


@dataclass(frozen=True)
class Failure:
    """A query whose search failed. In a list of answers, a `Failure` takes the place of the answer.

    Attributes
    ----------
    query_name : path or file name of the query.
    error : the exception that the search raised.
    """

    query_name: str
    error: Exception
    verdict: None = None
    results: tuple[()] = ()

    def __str__(self) -> str:
        return f"{self.query_name}: {self.error}"


class Answers(Sequence[Answer | Failure]):
    """The answers to many queries, in the order of the queries.

    A query whose search failed has a `Failure` in its place.
    """

    def __init__(self, outcomes: Sequence[Answer | Failure]) -> None:
        self._outcomes = tuple(outcomes)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The queries whose search failed."""
        return tuple(one for one in self._outcomes if isinstance(one, Failure))

    def to_pandas(self, per: Per = "query") -> pd.DataFrame:
        """Return a table with a row for each query; with ``per="result"``, for each result.

        Raises
        ------
        ValueError : ``per`` is neither ``query`` nor ``result``.
        ImportError : pandas is not installed.
        """
        return to_pandas(self.rows(per))

    def to_arrow(self, per: Per = "query") -> pa.Table:
        """Return an Arrow table like `to_pandas`: a row for each query, or for each result.

        Raises
        ------
        ValueError : ``per`` is neither ``query`` nor ``result``.
        ImportError : pyarrow is not installed.
        """
        return to_arrow(self.rows(per))

    def rows(self, per: Per = "query") -> Iterator[dict[str, Any]]:
        """Yield the rows of the tables.

        Raises
        ------
        ValueError : ``per`` is neither ``query`` nor ``result``.
        """
        if per not in {"query", "result"}:
            raise ValueError(f"per: received {per!r}, wanted 'query' or 'result'.")
        if per == "query":
            yield from map(query_row, self._outcomes)
            return
        for one in self._outcomes:
            if isinstance(one, Answer):
                yield from _result_rows(one)
            else:
                yield {"query": one.query_name, "verdict": None, "error": str(one.error)}

    @overload
    def __getitem__(self, place: int) -> Answer | Failure: ...
    @overload
    def __getitem__(self, place: slice) -> Answers: ...
    def __getitem__(self, place: int | slice) -> Answer | Failure | Answers:
        if isinstance(place, slice):
            return Answers(self._outcomes[place])
        return self._outcomes[place]

    def __len__(self) -> int:
        return len(self._outcomes)

    def __repr__(self) -> str:
        counts = self._counts()
        return f"<Answers {len(self)} queries: {counts}>" if counts else "<Answers 0 queries>"

    def _counts(self) -> str:
        return counts_of([one.verdict for one in self._outcomes])

    def _repr_html_(self) -> str:
        shown = "".join(map(_row_html, self._outcomes[:N_SHOWN]))
        more = len(self) - N_SHOWN
        rest = f"<p>… and {more} more</p>" if more > 0 else ""
        return (
            f"<p><b>{len(self)} queries</b>: {self._counts()}</p><table><tr><th>query</th>"
            "<th>verdict</th><th></th><th>first result</th><th>P(match)</th></tr>"
            f"{shown}</table>{rest}"
        )


def counts_of(verdicts: Sequence[str | None]) -> str:
    """Return how often each verdict occurs, such as ``3 match, 1 failed``; None means failed."""
    counts = Counter(verdict or "failed" for verdict in verdicts)
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def data_uri(picture: Picture) -> str:
    """Return a picture as a data URI."""
    data, media_type = picture
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def query_row(outcome: Answer | Failure) -> dict[str, Any]:
    """Return an answer as one row: verdict, first result, uncertainty and outlier test."""
    row: dict[str, Any] = {"query": outcome.query_name, "verdict": outcome.verdict}
    first = outcome.results[0] if outcome.results else None
    for name in ("id", "label", "match_probability", "similarity"):
        row[name] = None if first is None else getattr(first, name)
    answer = outcome if isinstance(outcome, Answer) else None
    query = None if answer is None else answer.query
    row |= {
        "no_match_probability": None if answer is None else answer.no_match_probability,
        "uncertainty": None if query is None else query.uncertainty.value,
        "uncertainty_percentile": None if query is None else query.uncertainty.percentile,
        "ood_p_value": None if query is None else query.ood.p_value,
        "ood": None if query is None else query.ood.flag,
        "guaranteed": None if answer is None else answer.guaranteed,
        "reason": None if answer is None else answer.reason,
        "query_id": None if query is None else query.id,
        "error": str(outcome.error) if isinstance(outcome, Failure) else None,
    }
    return row


def _result_rows(answer: Answer) -> Iterator[dict[str, Any]]:
    head = {"query": answer.query_name, "verdict": answer.verdict}
    for one in answer.results:
        yield head | one.model_dump(exclude={"thumbnail_url", "preview_url"})


def _row_html(outcome: Answer | Failure) -> str:
    cells = [escape(outcome.query_name), outcome.verdict or "failed"]
    if isinstance(outcome, Failure):
        cells += ["", escape(str(outcome.error)), ""]
    elif outcome.results:
        first = outcome.results[0]
        cells += [outcome._image(first, 48), escape(first.label or first.id)]
        cells.append(_probability(first, ""))
    else:
        cells += ["", "", ""]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _probability(result: schemas.Result, before: str) -> str:
    probability = result.match_probability
    return "" if probability is None else f"{before}{probability:.3f}"


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
