"""Reads a manifest: a CSV, JSONL or Parquet file with a line for each image."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from index_builder.datasets.image_files import LeftOut, head_of
from index_builder.indexing.blocks import Box, Entry, Place
from index_builder.indexing.sources.places import Places, named
from index_builder.progress import warn
from index_builder.storage import shown
from index_builder.vectors.table import opened_parquet
from model_store.errors import DatasetError
from model_store.images import content_of

MANIFEST_SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet")
COLUMNS = frozenset({"id", "path", "label", "metadata", "group", "source", "bbox"})
"""Columns with a defined meaning. All other columns are metadata."""

_LEAST_MISSPELT = 4
"""Minimum length of a column name that is checked for misspellings. If a name is shorter, a change
of one letter often gives another word."""

_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,20})?(e-[0-9]{2})?")
"""Pattern of a text that is read as a number. 007 and 1E5 do not match, because they are probably
names. Python and pandas write computed numbers with up to 20 digits, or as 5e-05."""

_OFTEN_LABELS = frozenset(
    {"class", "class_name", "category", "species", "identity", "individual", "target"}
)
"""Names that other programs give the column with the labels."""

_UNNAMED = "\0"
"""Prefix of the number of a CSV column without a name. No named column begins with it."""

Line = tuple[str, Mapping[str, Any]]
"""The position of a line (for messages), and the fields of the line."""

Reader = Callable[[Path], Iterator[tuple[int, Mapping[str, Any]]]]


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """The images that the file at ``path`` lists, in the order of the file.

    Only the column ``path`` is required: a path relative to ``places``, or a URL. The default
    ``id`` is the path, or the URL without secrets. Optional columns are ``label``, ``metadata`` (an
    object), ``group`` (the same for images that are not independent), ``source`` (the image's
    origin) and ``bbox`` (left, top, width and height of the part to use, in pixels). If the columns
    ``metadata`` and ``bbox`` contain text, the text is JSON. Every other column becomes a metadata
    field; ``metadata`` must not have another value of this field. In CSV, a text that looks like a
    plain number becomes a number. Empty fields are left out.

    Attributes
    ----------
    labelled : if True, labels define the classes. If False, each image is its own class, and the
        label is stored as metadata.
    texts : columns that are always read as text; see `lines_of`.
    """

    path: Path
    places: Places
    labelled: bool = True
    texts: Collection[str] = COLUMNS

    def entries(self, _scratch: Path, _left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each line; warn if a column with another name may have the labels.

        Raises
        ------
        DatasetError : a line is invalid.
        """
        names: Collection[str] | None = None
        has_labels = not self.labelled or self.texts != COLUMNS  # queries need no label
        for origin, fields in lines_of(self.path, self.texts):
            entry = _entry(origin, fields, self.places)
            names = fields.keys() if names is None else names
            has_labels = has_labels or entry.label is not None
            yield entry if self.labelled else without_label(entry)
        likely = [name for name in names or () if name.casefold() in _OFTEN_LABELS]
        if likely and not has_labels:
            warn(
                f"{self.path.name} gives its images no labels. If the "
                f"column {likely[0]} has them, rename it to label."
            )


def lines_of(path: Path, texts: Collection[str] = COLUMNS) -> Iterator[Line]:
    """Yield the lines of a manifest.

    Parameters
    ----------
    texts : columns that are always read as text. In all other columns, a text that looks like a
        plain number becomes a number.

    Raises
    ------
    DatasetError : the file cannot be read, or does not have the format of its suffix.
    """
    has_lines = False
    readers: dict[str, Reader] = {".csv": partial(_csv, texts=texts), ".parquet": _parquet}
    try:
        for number, fields in readers.get(path.suffix.lower(), _jsonl)(path):
            origin = f"{path.name}, line {number}"
            require_names(fields, origin, frozenset(texts))
            has_lines = True
            yield origin, fields
        if not has_lines and path.suffix.lower() != ".parquet":
            _require_unknown_content(path)
    except UnicodeDecodeError as error:
        _require_unknown_content(path)
        raise DatasetError(f"{path.name} is not UTF-8 text. Save it as UTF-8.") from error
    except FileNotFoundError as error:
        raise DatasetError(f"{path} does not exist. Name a manifest.") from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}. Name a manifest.") from error


def _require_unknown_content(path: Path) -> None:
    """Raise an error that names the content of a file without lines, for example a web page.

    Raises
    ------
    DatasetError
    """
    content = content_of(head_of(path))
    if content is not None:
        raise DatasetError(
            f"{path.name} is not a manifest. It is {content.name}. Export it as CSV, or download "
            "it again."
        )


def require_names(fields: Mapping[str, Any], origin: str, known: frozenset[str] = COLUMNS) -> None:
    """Raise an error for names that look misspelt, such as `` label``, ``Labels`` or ``lable``.

    Such fields would become metadata without a warning. If the correctly spelt field exists too,
    the similar field is accepted as metadata.

    Raises
    ------
    DatasetError
    """
    meant = _near_misses(tuple(fields), known)
    if meant:
        names = ", ".join(f"{name!r} (did you mean `{one}`?)" for name, one in meant)
        raise DatasetError(
            f"{origin}: these columns look like misspelt known columns: {names}. Rename "
            "them; for metadata, choose less similar names."
        )


@lru_cache(maxsize=64)
def _near_misses(names: tuple[object, ...], known: frozenset[str]) -> list[tuple[str, str]]:
    """Return each name that looks misspelt, with the known name that it resembles."""
    found = []
    for name in names:
        if not isinstance(name, str) or name in known:
            continue
        plain = re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", name).casefold())
        others = sorted(known - set(names))
        found += [
            (name, one)
            for one in others
            if plain in {one, f"{one}s", f"{one}es"} or _is_misspelt(plain, one)
        ]
    return found


def _is_misspelt(name: str, known: str) -> bool:
    """Return whether ``name`` differs from ``known`` by one letter or by two swapped letters."""
    if len(known) < _LEAST_MISSPELT or name == known:
        return False
    begin = _n_same(name, known)
    end = _n_same(name[begin:][::-1], known[begin:][::-1])
    rest, wanted = name[begin : len(name) - end], known[begin : len(known) - end]
    return max(len(rest), len(wanted)) == 1 or (len(rest) == 2 and rest == wanted[::-1])


def _n_same(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _entry(origin: str, fields: Mapping[str, Any], places: Places) -> Entry:
    path = text_of(fields, "path", origin)
    if path is None:
        raise DatasetError(
            f"{origin}: there is no path. Give the place of the image in a column named path; "
            f"the columns here are {', '.join(map(repr, fields))}."
            f"{_separator_advice(fields)}"
        )
    box = read_box(fields.get("bbox"), origin)
    name = named(path)
    place = replace(places.place(path, f"{origin}: {shown(path)!r}"), box=box)
    return entry_of(fields, origin, place, name if box is None else f"{name}#{_in_short(box)}")


def entry_of(fields: Mapping[str, Any], origin: str, place: Place, name: str) -> Entry:
    """Return the entry for a line of a manifest.

    The image is at ``place``. If the line has no id, the id is ``name``.

    Raises
    ------
    DatasetError : a field is invalid.
    """
    require_names(fields, origin)
    return Entry(
        text_of(fields, "id", origin) or name,
        place,
        text_of(fields, "label", origin),
        _metadata(fields, origin),
        origin,
        text_of(fields, "group", origin),
        text_of(fields, "source", origin),
    )


def read_box(value: object, origin: str) -> Box | None:
    """Read a box, see `require_box`; None if there is no value.

    Raises
    ------
    DatasetError : the value is not a box, or the width or height is not positive.
    """
    return None if value is None or value == "" else require_box(value, origin)


def require_box(value: object, origin: str) -> Box:
    """Read a box: left, top, width and height, as a list or as JSON.

    Raises
    ------
    DatasetError : there is no box, or the width or height is not positive.
    """
    wanted = f"{origin}: the box is {value!r}; wanted [left, top, width, height] in pixels."
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DatasetError(wanted) from error
    numbers = list(value) if isinstance(value, list | tuple) else []
    if len(numbers) != 4 or not all(isinstance(one, int | float) for one in numbers):
        raise DatasetError(wanted)
    try:
        left, top, width, height = map(float, numbers)
    except OverflowError as error:
        raise DatasetError(wanted) from error
    if not all(map(math.isfinite, (left, top, width, height))):
        raise DatasetError(wanted)
    if width <= 0 or height <= 0:
        raise DatasetError(wanted)
    return left, top, width, height


def _separator_advice(fields: Mapping[str, Any]) -> str:
    header = str(next(iter(fields))) if len(fields) == 1 else ""
    called = [name for one, name in ((";", "semicolons"), ("\t", "tabs")) if one in header]
    return "".join(f" Separate columns with commas, not with {name}." for name in called)


def _in_short(box: Box) -> str:
    return ",".join(f"{one:g}" for one in box)


def without_label(entry: Entry) -> Entry:
    """Move the label of an entry into its metadata, unless the metadata has a field ``label``."""
    if entry.label is None:
        return entry
    return replace(entry, label=None, metadata={"label": entry.label, **entry.metadata})


def text_of(fields: Mapping[str, Any], name: str, origin: str) -> str | None:
    """Return a field as text; None for a field that is empty or has only spaces."""
    value = fields.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(f"{origin}: {name} is {value!r}; wanted text or a whole number.")
    if "\0" in str(value):
        raise DatasetError(f"{origin}: {name} is {value!r}, with a null character in it.")
    return str(value)


def _metadata(fields: Mapping[str, Any], origin: str) -> Mapping[str, Any]:
    """Return the metadata: all columns outside `COLUMNS`, and the fields in ``metadata``."""
    columns = {
        name: _plain(value)
        for name, value in fields.items()
        if name not in COLUMNS and value is not None and value != ""
    }
    for name, value in columns.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"{origin}: {name!r} cannot be metadata, which is written as JSON ({error}). "
                "Leave this column out, or this value empty."
            ) from error
    written = _written_metadata(fields.get("metadata"), origin)
    twice = [name for name in columns if name in written and written[name] != columns[name]]
    if twice:
        raise DatasetError(
            f"{origin}: {', '.join(map(repr, twice))} has one value in `metadata` and another in "
            "its own column. Keep one."
        )
    return {**columns, **written}


def _plain(value: object) -> object:
    """Convert dates and times to text; return other values unchanged."""
    return value.isoformat() if isinstance(value, dt.date | dt.time) else value


def _number(text: str) -> str | float:
    if _PLAIN_NUMBER.fullmatch(text) is None:
        return text
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _written_metadata(value: object, origin: str) -> Mapping[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = _json(value, f"{origin}: metadata")
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{origin}: metadata is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{origin}: metadata is {value!r}; wanted an object.")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{origin}: metadata cannot be written as JSON ({error}).") from error
    return value


def _json(text: str, origin: str) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON; refuse numbers that are not finite, and repeated names in an object."""
    hook = partial(_object, origin=origin)
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=hook)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _csv(path: Path, texts: Collection[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        lines = reader.reader
        try:
            header = next(filter(None, lines), [])  # blank lines may come first
            _require_once(header, f"{path.name}, line {lines.line_num}")
            reader.fieldnames = [
                name or f"{_UNNAMED}{number}" for number, name in enumerate(header, start=1)
            ]
            for fields in reader:
                if None in fields or None in fields.values():
                    raise DatasetError(
                        f"{path.name}, line {reader.line_num}: the number of values differs from "
                        f"the number of columns ({', '.join(header)})."
                        + _separator_advice(dict.fromkeys(header))
                    )
                named = _named_only(fields, f"{path.name}, line {reader.line_num}")
                yield reader.line_num, _with_numbers(named, texts)
        except csv.Error as error:
            raise DatasetError(
                f"{path.name}, line {lines.line_num} is not CSV ({error})."
            ) from error


def _named_only(fields: Mapping[str, str], origin: str) -> Mapping[str, str]:
    """Leave out columns without a name; refuse them if they have a value."""
    for name, text in fields.items():
        if name.startswith(_UNNAMED) and text.strip():
            raise DatasetError(
                f"{origin}: column {name.removeprefix(_UNNAMED)} has the value {text[:60]!r}, but "
                "no name. Name the column, or leave it out (pandas: `index=False`)."
            )
    return {name: text for name, text in fields.items() if not name.startswith(_UNNAMED)}


def _with_numbers(fields: Mapping[str, str], texts: Collection[str]) -> Mapping[str, Any]:
    return {name: text if name in texts else _number(text) for name, text in fields.items()}


def _require_once(names: Sequence[str], origin: str) -> None:
    """Raise an error for a repeated name, because one value would be lost without a warning.

    Several columns can have an empty name, because spreadsheets write empty columns.

    Raises
    ------
    DatasetError
    """
    twice = sorted({repr(name) for name in names if name and names.count(name) > 1})
    if twice:
        raise DatasetError(
            f"{origin}: {', '.join(twice)} appears more than once. Keep one column of each name."
        )


def _object(pairs: list[tuple[str, Any]], origin: str) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        _require_once([name for name, _ in pairs], origin)
    return found


def _jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                fields = _json(line, f"{path.name}, line {number}")
            except (ValueError, RecursionError) as error:
                raise DatasetError(
                    f"{path.name}, line {number} is not JSON ({error}). Write one object in each "
                    "line."
                ) from error
            if not isinstance(fields, dict):
                raise DatasetError(f"{path.name}, line {number} is {fields!r}; wanted an object.")
            yield number, fields


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with opened_parquet(path) as file:
        rows = (
            fields
            for batch in file.iter_batches()
            for fields in batch.to_pylist(maps_as_pydicts="strict")
        )
        yield from enumerate(rows, 1)
