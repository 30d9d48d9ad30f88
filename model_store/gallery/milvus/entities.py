"""Converts items to Milvus entities, entities to items, and filters to expressions of Milvus.

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

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DatasetError
from model_store.gallery.entities import Entity
from model_store.gallery.filters.grammar import And, Condition, Field, Filter, Not, Or, Scalar
from model_store.gallery.filters.sql import OPERATORS, metadata_json
from model_store.gallery.milvus.collection import FACT_LENGTH, MOST_FACTS, TEXT_BYTES
from model_store.gallery.protocol import Item, NewItem, stored_vector

ENTITY_FIELDS = ["id", "label", "labelled", "direction", "dispersion", "metadata"]
"""The fields of an `Entity`."""

_INTEGERS = range(-(2**63), 2**64)
"""Integers that JSON in Milvus stores exactly."""


def read_entity(found: Mapping[str, Any]) -> Entity:
    """Create an entity from the values of `ENTITY_FIELDS`."""
    label = found["label"] if found["labelled"] else None
    item = Item(found["id"], label, found["metadata"])
    direction = np.array(found["direction"], dtype=np.float32)
    return Entity(item, direction, found["dispersion"])


def rows_of(hits: Any) -> list[int]:  # noqa: ANN401 - pymilvus has no types
    """Return the rows of a search's hits, nearest first, without decoding other fields."""
    return [hits.get_raw_item(place)["entity"]["row"] for place in range(len(hits))]


def read_hits(hits: Any) -> dict[int, Entity]:  # noqa: ANN401 - pymilvus has no types
    """Create entities from a search's hits; the hits must contain `ENTITY_FIELDS`.

    Directions and metadata are read column by column. pymilvus reads cell by cell, which would take
    three times as long as the rest of this function.
    """
    if not len(hits):
        return {}
    columns = {column.field_name: column for column in hits.lazy_field_data}
    here = slice(hits.start, hits.start + len(hits))
    vectors = columns["direction"].vectors
    directions = np.array(vectors.float_vector.data, dtype=np.float32).reshape(-1, vectors.dim)
    metadata = columns["metadata"].scalars.json_data.data[here]
    entities = {}
    for place, (direction, text) in enumerate(zip(directions[here], metadata, strict=True)):
        found = hits.get_raw_item(place)["entity"]  # before 2.4, hit["id"] is the row
        whole = {**found, "direction": direction, "metadata": json.loads(text)}
        entities[found["row"]] = read_entity(whole)
    return entities


def write_entity(
    row: int,
    item: NewItem,
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
) -> dict[str, Any]:
    """Return the entity for ``row``: an item with the mean (D,) and variance (D,) of its embedding.

    Raises
    ------
    DatasetError : the item exceeds a limit of Milvus.
    """
    metadata = json.loads(metadata_json(item.metadata))
    thumbnail = base64.b64encode(item.thumbnail.data).decode()
    known = facts(item.id, item.label, metadata)
    _require_room(item, metadata, known, thumbnail)
    direction, norm, total_variance = stored_vector(mean, variance)
    return {
        "row": row,
        "id": item.id,
        "label": item.label or "",
        "labelled": item.label is not None,
        "direction": direction,
        "variance": variance.tolist(),
        "norm": norm,
        "dispersion": total_variance,
        "metadata": metadata,
        "facts": known,
        "thumbnail": thumbnail,
        "media_type": item.thumbnail.media_type,
    }


def _require_room(
    item: NewItem, metadata: Mapping[str, Any], known: list[str], thumbnail: str
) -> None:
    text = json.dumps(metadata, ensure_ascii=False)
    texts = [item.id, item.label or "", text, thumbnail]
    try:
        longest = max(len(one.encode()) for one in texts)
    except UnicodeEncodeError:
        raise _refusal(item, "an unpaired surrogate") from None
    if longest > TEXT_BYTES:
        raise _refusal(item, f"{longest:,} bytes of text, metadata or picture")
    if len(known) > MOST_FACTS:
        raise _refusal(item, f"{len(known):,} values for filters")
    if not _integers_fit(metadata):
        raise _refusal(item, "an integer of more than 64 bits")


def _refusal(item: NewItem, what: str) -> DatasetError:
    return DatasetError(
        f"The item {item.id[:80]!r} has {what}; Milvus takes at most {TEXT_BYTES:,} bytes, "
        f"{MOST_FACTS:,} values and integers of 64 bits. Shorten the item, or store the gallery "
        "in FAISS."
    )


def _integers_fit(value: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, dict):
        return all(map(_integers_fit, value.values()))
    if isinstance(value, list):
        return all(map(_integers_fit, value))
    return not isinstance(value, int) or value in _INTEGERS


EVERYTHING, NOTHING = "row >= 0", "row < 0"

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
            return _compare(condition.field, OPERATORS[condition.comparison], wanted, holds=holds)


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
