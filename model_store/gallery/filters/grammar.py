"""Filters: conditions on the id, label and metadata of the items that a search may find.

A filter is a JSON object that maps field names to conditions. All conditions must be true:

::

    {"label": "shoe"}                             the label is "shoe"
    {"year": {"gte": 2000, "lt": 2010}}           a metadata number within a range
    {"brand.name": {"in": ["Ono", "Ylva"]}}       a key of a nested object, one of several values
    {"tags": {"has": "red"}}                      a list that contains "red"
    {"sold": {"exists": false}}                   the metadata has no such field
    {"or": [{"label": "shoe"}, {"not": {"price": {"gt": 50}}}]}

Fields are ``id``, ``label`` and the metadata's keys; a dot selects a key of a nested object. A
metadata key named ``id``, ``label``, ``and``, ``or`` or ``not`` needs a prefix, for example
``metadata.label``. Comparisons: ``eq``, ``ne``, ``in``, ``gt``, ``gte``, ``lt``, ``lte``, ``has``,
``exists``. A bare value means ``eq``. Only values of the same kind are compared. The kinds are
text, number, boolean and null. Texts are ordered by code point. If the kinds differ, only ``ne`` is
true. If the field is missing, only ``ne`` and ``exists: false`` are true. ``ne`` is always the
opposite of ``eq``. An item without a label has the label null.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from model_store.errors import ConfigError, InvalidFilter

Scalar: TypeAlias = str | int | float | bool | None
Comparison = Literal["eq", "ne", "in", "gt", "gte", "lt", "lte", "has", "exists"]

MAX_BYTES = 1_500
"""Maximum size of a filter's JSON in bytes. The limit allows a filter with a hundred ids, and a
page cursor that contains the filter still fits into a URL."""

MAX_DEPTH = 8
MAX_CONDITIONS = 32
"""Maximum number of conditions. A search may check each condition for every item of the gallery."""

_RESERVED = frozenset({"id", "label", "and", "or", "not"})
_ORDERED = frozenset({"gt", "gte", "lt", "lte"})
_MAX_INTEGER = 2**63
_UNNAMEABLE = frozenset('"\\') | {chr(code) for code in range(32)}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an item: ``id``, ``label``, or a path of keys into the metadata."""

    column: Literal["id", "label", "metadata"]
    path: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the field in a filter."""
        if self.column != "metadata":
            return self.column
        name = ".".join(self.path)
        return f"metadata.{name}" if name in _RESERVED or name.startswith("metadata.") else name


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a field with one value; ``in`` compares with any number of values."""

    field: Field
    comparison: Comparison
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class And:
    """True if all parts are true, or if there are no parts."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if at least one part is true."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True if the part is false."""

    part: Filter


Filter: TypeAlias = Condition | And | Or | Not


class UnfitJson(ValueError):
    """A JSON document repeats a name, is nested too deeply, or has too long an integer."""


def read_json(text: str | bytes) -> Any:  # noqa: ANN401 - any document
    """Read a JSON document and refuse repeated names, which `json.loads` accepts.

    Raises
    ------
    UnfitJson : an object has the same name twice, the document is nested too deeply, or an integer
        has too many digits.
    JSONDecodeError, UnicodeDecodeError : the document is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise UnfitJson("is nested too deeply. Send a document with fewer levels.") from None
    except (UnfitJson, json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python converts no longer integers
        raise UnfitJson(
            f"has an integer of more than {sys.get_int_max_str_digits():,} digits. Send a smaller "
            "number."
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise UnfitJson(f"has {repeated[:40]!r} twice in one object. Name it once.")
    return found


def read_filter(text: str) -> Filter:
    """Read a filter from its JSON.

    Raises
    ------
    InvalidFilter : the text is not JSON, too large, or not a filter.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidFilter(
            f"The filter has {len(text)} characters; at most {MAX_BYTES} bytes are read. Shorten "
            "it."
        )
    try:
        value = read_json(text)
    except UnfitJson as error:
        raise InvalidFilter(f"The filter {error}") from None
    except ValueError:
        raise InvalidFilter(
            f"The filter is not JSON: {text[:80]!r}. Wanted an object such as "
            '{"label": "shoe", "year": {"gte": 2000}}.'
        ) from None
    return parse_filter(value)


def parse_filter(value: object) -> Filter:
    """Convert parsed JSON to a filter.

    Raises
    ------
    InvalidFilter : the value is not a filter, or exceeds `MAX_CONDITIONS` or `MAX_DEPTH`.
    """
    parsed = _filter(value, "the filter", MAX_DEPTH)
    if (n := _n_conditions(parsed)) > MAX_CONDITIONS:
        raise InvalidFilter(
            f"The filter has {n} conditions, at most {MAX_CONDITIONS} are allowed. Use `in` for "
            "several values of a field, or send several filters."
        )
    return parsed


def _n_conditions(part: Filter) -> int:
    match part:
        case Condition():
            return 1
        case Not(inner):
            return _n_conditions(inner)
        case And(parts) | Or(parts):
            return sum(map(_n_conditions, parts))


def _filter(value: object, place: str, depth: int) -> Filter:
    if not isinstance(value, dict) or not value:
        raise InvalidFilter(
            f"{place} is {_shown(value)}; wanted an object that names fields, such as "
            '{"label": "shoe"}.'
        )
    if depth == 0:
        raise InvalidFilter(f"The filter is nested deeper than {MAX_DEPTH}. Use fewer levels.")
    return _joined(
        [_entry(name, given, f"{place}.{name}", depth - 1) for name, given in value.items()]
    )


def _joined(parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _entry(name: str, given: object, place: str, depth: int) -> Filter:
    """Convert one entry of a filter object, a name and its value, to a filter."""
    if name == "not":
        return Not(_filter(given, place, depth))
    join = _JOINS.get(name)
    if join is not None:
        if not isinstance(given, list) or not given:
            raise InvalidFilter(f"{place} is {_shown(given)}; wanted a list of filters.")
        return join(tuple(_filter(part, f"{place}[{n}]", depth) for n, part in enumerate(given)))
    field = parse_field(name)
    if not isinstance(given, dict):
        return Condition(field, "eq", (_scalar(given, place),))
    if not given:
        raise InvalidFilter(f"{place} has no comparison; wanted {{{_COMPARISONS}: …}}.")
    return _joined([_condition(field, how, wanted, place) for how, wanted in given.items()])


_JOINS: Mapping[str, type[And | Or]] = {"and": And, "or": Or}
_COMPARISONS = " | ".join(get_args(Comparison))


def parse_field(name: str) -> Field:
    """Convert the name of a field to a `Field`.

    Raises
    ------
    InvalidFilter : no field can have this name.
    """
    if name in {"id", "label"}:
        return Field(cast("Literal['id', 'label']", name))
    path = tuple(name.removeprefix("metadata.").split("."))
    if not all(path) or _UNNAMEABLE & set(name):
        raise InvalidFilter(
            f"The field {name[:80]!r} cannot be named in a filter; wanted id, label, or metadata "
            "keys joined by dots, without quotation marks, backslashes and control characters."
        )
    _encodable(name, "the name of a field")
    return Field("metadata", path)


def named_fields(names: Sequence[str] | None) -> tuple[Field, ...] | None:
    """Convert configured field names to fields; None if no names are configured.

    Raises
    ------
    ConfigError : no field can have this name.
    """
    try:
        return None if names is None else tuple(parse_field(name) for name in names)
    except InvalidFilter as error:
        raise ConfigError(f"index.filter_fields, --filter-field: {error}") from None


def _condition(field: Field, how: str, wanted: object, place: str) -> Condition:
    if how not in get_args(Comparison):
        raise InvalidFilter(
            f"{place} has the comparison {how[:80]!r}; wanted {_COMPARISONS}. Write a key of a "
            "nested object as `outer.inner`."
        )
    place = f"{place}.{how}"
    if how == "in":
        if not isinstance(wanted, list):
            raise InvalidFilter(f"{place} is {_shown(wanted)}; wanted a list of values.")
        values = tuple(_scalar(one, f"{place}[{n}]") for n, one in enumerate(wanted))
    else:
        values = (_scalar(wanted, place),)
    if how == "exists" and not isinstance(values[0], bool):
        raise InvalidFilter(f"{place} is {_shown(wanted)}; wanted true or false.")
    if how in _ORDERED and (isinstance(values[0], bool) or values[0] is None):
        raise InvalidFilter(f"{place} is {_shown(wanted)}; wanted a number or text.")
    return Condition(field, cast("Comparison", how), values)


def _scalar(value: object, place: str) -> Scalar:
    if isinstance(value, str):
        _encodable(value, place)
        return value
    if value is None:
        return value
    if isinstance(value, int) and -_MAX_INTEGER <= value < _MAX_INTEGER:  # or a bool
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InvalidFilter(
        f"{place} is {_shown(value)}; wanted text, a finite number (an integer of at most 64 "
        "bits), true, false or null."
    )


def _encodable(text: str, place: str) -> None:
    """Refuse unpaired surrogates and the character NUL, which ends a text in SQLite."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidFilter(f"{place} has a NUL or an unpaired surrogate. Remove it.")


def _shown(value: object) -> str:
    """A short form of a value, for error messages."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) and value else f"{value!r:.40}"
    return f"{value!r:.80}"
