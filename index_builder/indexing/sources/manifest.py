"""A manifest: a CSV, JSONL or Parquet file with a line for each image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.places import Boundary
from model_store.errors import DatasetError

MANIFEST_SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet")
COLUMNS = frozenset({"id", "path", "label", "metadata", "group", "source"})

Line = tuple[str, Mapping[str, Any]]
"""Where it stands, for people, and its fields."""


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """The images that the file at ``path`` lists, in its order.

    ``path`` is wanted of each, from ``root``; ``id`` is the path where it is left out; ``label``
    and ``metadata`` (an object; in CSV and in text columns, written as JSON) may be left out, and
    so may ``group`` (what the image shows together with others) and ``source`` (where it comes
    from).
    """

    path: Path
    root: Path

    def entries(self, _scratch: Path, /) -> Iterator[Entry]:
        """One entry for each line.

        Raises
        ------
        DatasetError : a column is unknown, or a line not what it should be.
        """
        boundary = Boundary(self.root)
        for origin, fields in self._lines():
            yield _entry(origin, fields, self.root, boundary)

    def _lines(self) -> Iterator[Line]:
        suffix = self.path.suffix.lower()
        reader = {".csv": _csv, ".parquet": _parquet}.get(suffix, _jsonl)
        try:
            for number, fields in reader(self.path):
                yield f"{self.path.name}, line {number}", fields
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.path.name} is not UTF-8 text. Save it as UTF-8.") from error


def _entry(origin: str, fields: Mapping[str, Any], root: Path, boundary: Boundary) -> Entry:
    unknown = sorted(set(fields) - COLUMNS)
    if unknown:
        raise DatasetError(
            f"{origin}: unknown {', '.join(map(repr, unknown))}; wanted path, and maybe id, label, "
            "group, source and metadata. What else is known of an image goes into metadata, as one "
            "JSON object."
        )
    path = _text(fields, "path", origin)
    if path is None:
        raise DatasetError(f"{origin}: there is no path. Say where the image is.")
    label = _text(fields, "label", origin)
    return Entry(
        _text(fields, "id", origin) or path,
        boundary.place(root / path, f"{origin}: {path!r}"),
        label,
        _metadata(fields.get("metadata"), origin),
        origin,
        _text(fields, "group", origin),
        _text(fields, "source", origin),
    )


def _text(fields: Mapping[str, Any], name: str, origin: str) -> str | None:
    """A field as text; numbers are taken as they are written, what is empty is not there."""
    value = fields.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(f"{origin}: {name} is {value!r}; wanted text.")
    if "\0" in str(value):
        raise DatasetError(f"{origin}: {name} is {value!r}, with a null character in it.")
    return str(value)


def _metadata(value: object, origin: str) -> Mapping[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_no_constant)
        except ValueError as error:
            raise DatasetError(f"{origin}: metadata is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{origin}: metadata is {value!r}; wanted an object.")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{origin}: metadata cannot be written as JSON ({error}).") from error
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")


def _csv(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for fields in reader:
                if None in fields or None in fields.values():
                    raise DatasetError(
                        f"{path.name}, line {reader.line_num}: the line has more or fewer values "
                        f"than the first line has names ({', '.join(reader.fieldnames or ())})."
                    )
                yield reader.line_num, fields
        except csv.Error as error:
            raise DatasetError(
                f"{path.name}, line {reader.line_num} is not CSV ({error})."
            ) from error


def _jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line, parse_constant=_no_constant)
            except ValueError as error:
                raise DatasetError(f"{path.name}, line {number} is not JSON ({error}).") from error
            if not isinstance(fields, dict):
                raise DatasetError(f"{path.name}, line {number} is {fields!r}; wanted an object.")
            yield number, fields


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DatasetError(
            f"Reading {path.name} needs pyarrow: pip install 'vouch[parquet]'. CSV and JSONL need "
            "nothing."
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for fields in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    yield number, fields
    except ArrowException as error:
        raise DatasetError(f"{path.name} is not a Parquet file ({error}).") from error
