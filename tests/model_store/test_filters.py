"""Filters against an evaluator in Python that knows nothing of SQL, nor of indexes."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.errors import InvalidFilter
from model_store.gallery import NewItem, parse_filter, read_filter
from model_store.gallery.files import fields
from model_store.gallery.files import items as files_items
from model_store.gallery.files.fields import LEARNED_BYTES, MOST_FIELDS, FieldsSeen, write_fields
from model_store.gallery.files.items import Items, ItemsWriter
from model_store.gallery.filters.grammar import (
    MAX_BYTES,
    MAX_CONDITIONS,
    MAX_DEPTH,
    Condition,
    Field,
    parse_field,
)
from model_store.gallery.filters.sql import as_stored, metadata_json
from model_store.gallery.live import snapshot
from model_store.gallery.live.snapshot import LogColumns
from model_store.messages import IndexedBy
from tests.support.filters_in_words import EXAMPLES, FILTERS, ITEMS, METADATA, PICTURE, TEXT, holds

HOWS = ("bundle", "memory", "none")


def stored(path: Path, items: Sequence[NewItem], how: IndexedBy = "memory") -> Items:
    """Items whose fields are indexed in files, when they are asked for, or not at all."""
    for old in path.parent.glob("fields.*"):
        old.unlink()
    path.unlink(missing_ok=True)
    with ItemsWriter(path, "the-encoder") as written:
        written.add(items)
    if how == "bundle":
        write_fields(path.parent, len(items), None, written.fields)
    return Items(path)


def found(
    path: Path, asked: dict[str, Any], items: Sequence[NewItem], how: IndexedBy = "memory"
) -> list[str]:
    """The ids of the items that pass; however they are asked for, they are the same."""
    part, opened = parse_filter(asked), stored(path, items, how)
    with patch.object(fields, "LEARNED_BYTES", 0 if how == "none" else LEARNED_BYTES):
        matching = opened.matching(part)
    assert set(matching.indexes.values()) <= ({"bundle", "memory"} if how == "bundle" else {how})
    rows = np.arange(len(items))
    np.testing.assert_array_equal(matching.at(rows), matching.mask())
    np.testing.assert_array_equal(matching.rows(), np.flatnonzero(matching.mask()))
    assert matching.at_most >= matching.mask().sum()
    assert not matching.mask().flags.writeable
    return [items[row].id for row in matching.rows()]


@settings(max_examples=60)
@given(
    asked=FILTERS,
    labels=st.lists(st.none() | TEXT, min_size=4, max_size=4),
    how=st.sampled_from(HOWS),
    data=st.data(),
)
@pytest.mark.slow
def test_every_way_finds_what_the_description_says(
    tmp_path_factory: pytest.TempPathFactory,
    asked: dict[str, Any],
    labels: list[Any],
    how: IndexedBy,
    data: Any,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "filtered"
    folder.mkdir(exist_ok=True)
    asked = json.loads(json.dumps(asked))
    items = [
        NewItem(f"{row}'x", label, data.draw(METADATA), PICTURE) for row, label in enumerate(labels)
    ]
    expected = [item.id for item in items if holds(asked, item)]
    assert found(folder / "items.sqlite", asked, items, how) == expected


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("asked", "ids"), EXAMPLES)
def test_examples(tmp_path: Path, asked: dict[str, Any], ids: str, how: IndexedBy) -> None:
    assert found(tmp_path / "items.sqlite", asked, ITEMS, how) == list(ids)


@pytest.mark.parametrize(
    "asked",
    [
        {"label": "x' OR 1 = 1 --"},
        {"id": {"in": ["'); DROP TABLE items; --"]}},
        {"a') IS NULL OR 1 = 1 OR json_type(metadata, '$.b": 1},
        {"metadata.x' OR '1'='1": {"exists": True}},
        {"$[0]": {"exists": True}},
        {"a[#-1]": {"exists": True}},
        {"tags": {"has": "') OR 1 --"}},
    ],
)
def test_text_that_looks_like_sql_is_text(tmp_path: Path, asked: dict[str, Any]) -> None:
    assert found(tmp_path / "items.sqlite", asked, ITEMS) == []


def deep(levels: int) -> dict[str, Any]:
    return {"not": deep(levels - 1)} if levels > 1 else {"label": "x"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], r"the filter is \[\]; wanted an object"),
        ({}, "wanted an object"),
        ("label", "wanted an object"),
        ({"year": {}}, r"the filter\.year has no comparison"),
        ({"year": {"near": 3}}, r"the filter\.year has the comparison 'near'; wanted eq \| ne"),
        ({"year": [1999]}, r"the filter\.year is \[1999\]; wanted text"),
        ({"year": {"in": 1999}}, r"year\.in is 1999; wanted a list"),
        ({"year": {"gt": None}}, "wanted a number or text"),
        ({"year": {"gt": True}}, "wanted a number or text"),
        ({"year": math.nan}, "a finite number"),
        ({"year": 2**63}, "64 bits"),
        ({"year": "\ud800"}, "surrogate"),
        ({"year": "a\0b"}, "NUL"),
        ({"a..b": 1}, "cannot be named"),
        ({"": 1}, "cannot be named"),
        ({'a"b': 1}, "cannot be named"),
        ({"\ud800": 1}, "surrogate"),
        ({"sold": {"exists": 1}}, "wanted true or false"),
        ({"or": []}, "wanted a list of filters"),
        ({"or": {"a": 1}}, "wanted a list of filters"),
        ({"and": [3]}, r"the filter\.and\[0\] is 3"),
        ({"not": []}, r"the filter\.not is \[\]"),
        (deep(MAX_DEPTH + 1), "nested deeper"),
        ({f"k{n}": n for n in range(MAX_CONDITIONS + 1)}, "33 conditions, at most 32"),
    ],
)
def test_nonsense_is_refused_in_words(asked: Any, says: str) -> None:
    with pytest.raises(InvalidFilter, match=says):
        parse_filter(asked)


def test_what_is_at_the_limits_is_taken(tmp_path: Path) -> None:
    asked = {f"k{n}": n for n in range(MAX_CONDITIONS)}
    assert found(tmp_path / "items.sqlite", asked, ITEMS) == []
    assert len(found(tmp_path / "items.sqlite", deep(MAX_DEPTH), ITEMS)) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("label = shoe", "not JSON"),
        ("[" * 1500, "nested too deeply|not JSON"),  # from Python 3.13, JSON can be nested deeper
        (json.dumps({"label": "é" * MAX_BYTES}), f"at most {MAX_BYTES} bytes"),
    ],
)
def test_text_that_is_no_filter_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidFilter, match=says):
        read_filter(text)


def test_filter_of_the_maximum_size_is_read() -> None:
    def asked(n_bytes: int) -> str:
        return json.dumps({"label": "x" * (n_bytes - len('{"label": ""}'))})

    assert isinstance(read_filter(asked(MAX_BYTES)), Condition)
    with pytest.raises(InvalidFilter, match=f"at most {MAX_BYTES} bytes"):
        read_filter(asked(MAX_BYTES + 1))


def test_true_and_one_are_remembered_apart(tmp_path: Path) -> None:
    items = stored(tmp_path / "items.sqlite", ITEMS)
    ones = items.matching(parse_filter({"year": 1})).mask()
    trues = items.matching(parse_filter({"year": True})).mask()
    assert (ones.tolist(), trues.tolist()) == ([False] * 4, [False, False, False, True])


def test_numbers_of_filters_are_read_without_opening_a_database_for_each() -> None:
    asked = [{"year": {"gte": number}} for number in (0.1, 0.3)]
    as_stored(parse_filter(asked[0]))  # the thread may have none yet
    with patch("sqlite3.connect", side_effect=AssertionError("opened")):
        read = [as_stored(parse_filter(one)) for one in [*asked, {"label": "shoe"}]]
    assert read == [parse_filter(one) for one in [*asked, {"label": "shoe"}]]


def test_every_float_of_a_filter_is_read_as_sqlite_reads_it() -> None:
    """Some versions of SQLite read the last bit of some otherwise."""
    asked = {"not": {"and": [{"year": {"in": [1, 0.5, "a"]}}, {"year": {"gte": 1.5}}]}}
    moved = {"not": {"and": [{"year": {"in": [1, 2.5, "a"]}}, {"year": {"gte": 3.5}}]}}

    def reads(value: object) -> object:
        return value + 2 if isinstance(value, float) else value

    with patch("model_store.gallery.filters.sql._as_read", reads):
        assert as_stored(parse_filter(asked)) == parse_filter(moved)


@pytest.mark.parametrize("how", HOWS)
def test_rows_of_a_filter_are_looked_for_once_and_not_for_writing(
    tmp_path: Path, how: IndexedBy
) -> None:
    items = stored(tmp_path / "items.sqlite", ITEMS, how)
    first = items.matching(parse_filter({"label": "shoe"}))
    assert items.matching(parse_filter({"label": "shoe"})) is first
    with pytest.raises(ValueError, match="read-only"):
        first.mask()[0] = False


def without_what_json_lacks(value: Any) -> Any:
    """Metadata as a filter finds it; what is no number at all is nothing."""
    match value:
        case dict():
            return {key: without_what_json_lacks(part) for key, part in value.items()}
        case list():
            return [without_what_json_lacks(part) for part in value]
        case float() if math.isnan(value) or math.isinf(value):
            return None
    return value


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text("aé\ud800", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
)


@given(st.dictionaries(st.text("ab"), ANY_JSON, max_size=3))
def test_metadata_is_kept_as_json_whatever_it_holds(metadata: dict[str, Any]) -> None:
    text = metadata_json(metadata)
    assert json.loads(text) == without_what_json_lacks(metadata)
    assert metadata_json(dict(reversed(metadata.items()))) == text, "whatever came first"
    text.encode()


def test_metadata_is_kept_in_the_letters_that_it_has() -> None:
    """As SQLite compares them; half a surrogate pair, which has no bytes, by its number."""
    assert metadata_json({"b": (1, math.nan), "a": "é"}) == '{"a": "é", "b": [1, null]}'
    assert metadata_json({"a": "\ud800"}) == '{"a": "\\ud800"}'


def worth_indexing(*items: dict[str, Any]) -> list[str]:
    seen = FieldsSeen()
    for metadata in items:
        seen.add(metadata)
    return [field.name for field in seen.worth_indexing()]


def test_the_fields_of_most_items_are_worth_an_index_those_of_little_text_first() -> None:
    """Text takes room, of which there is only so much: what comes last may find none left."""
    story = {"story": "long, long ago"}
    assert worth_indexing(story | {"b": 1}, story | {"a": ["x", "yz"]}, {"b": 2, "a": "z"}) == [
        "b",
        "a",
        "story",
    ]
    assert worth_indexing({"b": 1, "a": 1, "in": {"it": {"c": None}}}) == ["a", "b", "in.it.c"]
    assert worth_indexing({"": 1, "a": {"": 1}}) == [], "no filter can name them"
    rare = {f"rare{n}": 1 for n in range(MOST_FIELDS)}
    found = worth_indexing(rare | {"often": "x" * 99}, {"often": "x"})
    assert len(found) == MOST_FIELDS
    assert found[-1] == "often"


def test_of_more_fields_than_anybody_names_the_first_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fields, "_MOST_SEEN", 2)
    assert worth_indexing({"c": 1}, {"b": 1}, {"a": 1, "c": 1}) == ["b", "c"]


def test_the_filters_that_were_asked_last_are_remembered(tmp_path: Path) -> None:
    held = stored(tmp_path / "items.sqlite", ITEMS)
    a, b, c = (parse_filter({"label": label}) for label in "abc")
    with patch.object(files_items, "REMEMBERED_FILTERS", 2):
        first, second = held.matching(a), held.matching(b)
        assert held.matching(a) is first
        held.matching(c)
        assert held.matching(a) is first
        assert held.matching(b) is not second, "it was asked for longest ago"


@pytest.mark.parametrize(
    ("limit", "most"), [("MOST_COLUMNS", 2), ("MOST_BYTES", 20), ("MOST_BYTES", 29)]
)
def test_indexes_of_written_items_that_were_asked_last_are_kept(limit: str, most: int) -> None:
    asked: list[str] = []

    def column(field: Field, sequences: Any) -> Any:
        asked.append(field.name)
        return SimpleNamespace(n_bytes=10)

    log: Any = SimpleNamespace(column=column)
    columns, one_run = LogColumns(log), np.array([1])
    with patch.object(snapshot, "RUN", 1), patch.object(snapshot, limit, most):
        for name in "abacab":
            [(start, _)] = columns.all(parse_field(name), one_run)
            assert start == 0
    assert asked == ["a", "b", "c", "b"], "what was asked for longest ago makes room"


@pytest.mark.parametrize(("larger_by", "is_small"), [(0, True), (1, False)])
def test_small_file_of_items_has_a_small_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, larger_by: int, is_small: bool
) -> None:
    path = tmp_path / "items.sqlite"
    stored(path, ITEMS)
    monkeypatch.setattr(files_items, "SMALL_BYTES", path.stat().st_size - larger_by)
    items = Items(path)
    [[n_kib]] = items._connection.execute("PRAGMA cache_size").fetchall()
    assert (n_kib == -files_items.SMALL_CACHE_KIB) is is_small


def test_items_that_are_written_part_by_part_are_those_of_the_whole(tmp_path: Path) -> None:
    labels = ["b", None, "a", "b", "c", None]
    items = [NewItem(f"{row}", label, {"n": row}, PICTURE) for row, label in enumerate(labels)]
    with ItemsWriter(tmp_path / "items.sqlite", "e", n_changed=3) as writer:
        for part in (items[:1], [], items[1:4], items[4:]):
            writer.add(part)
        assert writer.label_codes().tolist() == [1, -1, 0, 1, 2, -1]
    written = Items(tmp_path / "items.sqlite")
    assert [written.row(item.id) for item in items] == list(range(6))
    assert [item.metadata["n"] for item in written.at([5, 0, 3])] == [5, 0, 3]
    assert (list(written.labels()), written.count()) == (["a", "b", "c"], 6)
    assert (written.encoder_fingerprint, written.n_changed) == ("e", 3)


def test_items_whose_writing_failed_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "items.sqlite"
    with pytest.raises(ZeroDivisionError), ItemsWriter(path, "e") as writer:  # noqa: PT012 - all of it
        writer.add(ITEMS)
        raise ZeroDivisionError
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == []
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        writer.add([])


@pytest.mark.parametrize("reserved", ["id", "label", "and", "or", "not"])
def test_metadata_field_of_a_reserved_name_is_named_in_full(reserved: str) -> None:
    """Its neighbours are not, and each name leads to its own field."""
    neighbours = (f"{reserved}s", f"x{reserved}", reserved[:-1], f"{reserved}.x", f"x.{reserved}")
    for name in neighbours:
        assert parse_field(name).path == tuple(name.split("."))
        assert parse_field(name).name == name
    for full in (f"metadata.{reserved}", f"metadata.metadata.{reserved}"):
        assert parse_field(full).column == "metadata"
        assert parse_field(full).name == full


@pytest.mark.parametrize("name", ["knot", "nots", "band", "android", "floor", "order"])
def test_field_with_a_name_like_an_operator_is_compared(name: str) -> None:
    expected = Condition(Field("metadata", (name,)), "eq", ("x",))
    assert parse_filter({name: "x"}) == expected


@pytest.mark.parametrize("name", ["equ", "neq", "xin", "ins", "haslet", "exist", "nlt"])
def test_comparison_with_a_name_like_a_known_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidFilter, match=f"has the comparison '{name}'"):
        parse_filter({"year": {name: "x"}})


@pytest.mark.parametrize("character", ["\ud7ff", "\ue000", "\uffff", "\U0001f600"])
def test_character_beside_the_surrogates_is_text(character: str) -> None:
    assert parse_filter({"label": character}) == Condition(Field("label"), "eq", (character,))


@pytest.mark.parametrize("code", [0xD800, 0xDFFF])
def test_unpaired_surrogate_is_refused(code: int) -> None:
    with pytest.raises(InvalidFilter, match="surrogate"):
        parse_filter({"label": chr(code)})


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 0])
def test_integer_of_64_bits_is_a_value(value: int) -> None:
    assert isinstance(parse_filter({"label": value}), Condition)


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63])
def test_integer_of_more_bits_is_refused(value: int) -> None:
    with pytest.raises(InvalidFilter, match="of at most 64 bits"):
        parse_filter({"label": value})


def test_message_names_the_name_that_is_repeated() -> None:
    with pytest.raises(InvalidFilter, match="has 'b' twice"):
        read_filter('{"a": 1, "b": 2, "b": 3}')


@pytest.mark.parametrize(("value", "shown"), [({}, "is {};"), ({"a": 1}, "is an object;")])
def test_message_shows_an_empty_object_and_describes_another(
    value: dict[str, Any], shown: str
) -> None:
    with pytest.raises(InvalidFilter, match=re.escape(shown)):
        parse_filter({"label": {"in": [value]}})


def test_text_after_all_others_is_found_nowhere(tmp_path: Path) -> None:
    last = max(item.label or "" for item in ITEMS)
    assert found(tmp_path / "items.sqlite", {"label": last + "z"}, ITEMS, "bundle") == []
