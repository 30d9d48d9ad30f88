"""Converts filters to boolean expressions of Milvus.

Milvus and the filters of Vouch have different rules for the comparison of JSON values. Milvus does
not distinguish a missing key from null, and it compares values of different kinds. The result of a
negated comparison depends on the release of Milvus. So each item has `facts`: an array with a
digest of each value. A field has a value if the array contains the value's digest. The result of
this test is always true or false. For this test, the expression contains no text from the client,
and Milvus uses an inverted index. Only ``gt``, ``gte``, ``lt`` and ``lte`` compare values instead
of digests. With these comparisons, the expression also tests one fact: that the value exists and
has the right kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from model_store.gallery.filters.grammar import And, Condition, Field, Filter, Not, Or, Scalar

FACT_LENGTH = 24
"""Number of hexadecimal digits of a fact. For 10⁹ different facts, the probability of two equal
digests is 10⁻¹¹."""

EVERYTHING, NOTHING = "row >= 0", "row < 0"

_ORDERED: Mapping[str, str] = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_OPPOSITE: Mapping[str, str] = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_Path = tuple[str, ...]


def facts(item_id: str, label: str | None, metadata: Mapping[str, Any]) -> list[str]:
    """Return the sorted facts of an item; ``metadata`` is parsed JSON."""
    found = {*_facts(("id",), item_id), *_facts(("metadata",), metadata)}
    if label is None:
        found.add(_equals(("label",), None))
    else:
        found.update(_facts(("label",), label))
    return sorted(found)


def to_expression(part: Filter, *, holds: bool = True) -> str:
    """Return an expression that is true for the items that pass a filter.

    If ``holds`` is False, the expression is true for the items that do not pass the filter.

    The expression uses the fields ``row`` (never negative), ``id``, ``label``, ``metadata`` and
    ``facts``. Only tests of facts are negated with ``not``. The negation of a comparison is the
    opposite comparison, for example ``<=`` instead of ``>``.
    """
    match part:
        case Condition():
            return _condition(part, holds=holds)
        case Not(inner):
            return to_expression(inner, holds=not holds)
        case And(parts) | Or(parts):
            every = isinstance(part, And) is holds
            texts = [to_expression(one, holds=holds) for one in parts]
            if not texts:
                return EVERYTHING if every else NOTHING
            return f"({(' and ' if every else ' or ').join(texts)})"


def literal(text: str) -> str:
    """Quote a text for an expression."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def _condition(condition: Condition, *, holds: bool) -> str:
    path = _path(condition.field)
    wanted = condition.values[0] if condition.values else None
    match condition.comparison:
        case "eq":
            return _contains(_equals(path, wanted), holds=holds)
        case "ne":
            return _contains(_equals(path, wanted), holds=not holds)
        case "in":
            return _contains(*(_equals(path, one) for one in condition.values), holds=holds)
        case "has":
            return _contains(_holds(path, wanted), holds=holds)
        case "exists":
            return _contains(_fact("exists", path), holds=holds is bool(wanted))
        case _:
            return _compare(condition.field, _ORDERED[condition.comparison], wanted, holds=holds)


def _compare(field: Field, operator: str, wanted: Scalar, *, holds: bool) -> str:
    kind, _ = _known(wanted)
    if field.column != "metadata" and kind != "text":  # Milvus compares ids only with text
        return NOTHING if holds else EVERYTHING
    of_kind = _contains(_fact(kind, _path(field)), holds=holds)
    value = literal(wanted) if isinstance(wanted, str) else _number(wanted)
    operator = operator if holds else _OPPOSITE[operator]
    return f"({of_kind} {'and' if holds else 'or'} {_source(field)} {operator} {value})"


def _contains(*any_of: str, holds: bool) -> str:
    if not any_of:
        return NOTHING if holds else EVERYTHING
    listed = ", ".join(f'"{fact}"' for fact in any_of)
    text = (
        f"array_contains(facts, {listed})"
        if len(any_of) == 1
        else f"array_contains_any(facts, [{listed}])"
    )
    return text if holds else f"(not {text})"


def _source(field: Field) -> str:
    if field.column != "metadata":
        return field.column
    return "metadata" + "".join(f"[{literal(key)}]" for key in field.path)


def _number(value: Scalar) -> str:
    if value == -(2**63):  # Milvus first parses 2⁶³, which does not fit into 64 bits
        return repr(float(value))
    return repr(value)


def _path(field: Field) -> _Path:
    return (field.column, *field.path)


def _facts(path: _Path, value: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON holds
    yield _fact("exists", path)
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _facts((*path, key), part)
    elif isinstance(value, list):
        for one in value:
            if not isinstance(one, (list, dict)):
                yield _holds(path, one)
    else:
        yield _equals(path, value)
        yield _fact(_known(value)[0], path)


def _equals(path: _Path, value: Scalar) -> str:
    return _fact("is", path, *_known(value))


def _holds(path: _Path, value: Scalar) -> str:
    return _fact("has", path, *_known(value))


def _known(value: Scalar) -> tuple[str, str]:
    """Return the kind of a value, and a text that is the same for equal values."""
    if value is None or isinstance(value, bool):
        return repr(value), ""
    if isinstance(value, str):
        return "text", value
    if isinstance(value, float) and value.is_integer():
        return "number", str(int(value))
    return "number", repr(value)


def _fact(what: str, path: _Path, *known: str) -> str:
    text = json.dumps([what, path, *known])
    return hashlib.blake2b(text.encode(), digest_size=FACT_LENGTH // 2).hexdigest()
