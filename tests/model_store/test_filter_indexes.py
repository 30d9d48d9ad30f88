"""Indexes of fields: every way of answering a filter lets the same items through."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import ConfigError, LogDamaged, StorageFailed
from model_store.gallery import (
    Allowed,
    ChangesFile,
    Delete,
    FaissGallery,
    Gallery,
    IndexSettings,
    LiveGallery,
    MaskedRows,
    NewItem,
    Upsert,
    Vector,
    parse_filter,
    write_faiss_gallery,
)
from model_store.gallery.files import fields
from model_store.gallery.files.fields import (
    COLUMNS_FILE,
    FIELDS_FILE,
    ITEMS_FILE,
    LEARNED_BYTES,
    FieldColumns,
)
from model_store.gallery.filters import columns, selection
from model_store.gallery.filters.columns import (
    NUMBER_KIND,
    TEXT_KIND,
    Column,
    Counted,
    Postings,
    facet_of,
)
from model_store.gallery.filters.grammar import Comparison, Field, Scalar, parse_field
from model_store.gallery.filters.sql import column_of
from model_store.gallery.index import search as index_search
from model_store.gallery.live import snapshot
from tests.laws.gallery_laws import random_embeddings
from tests.support.filters_in_words import FILTERS, NAMES, PICTURE, holds

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 1.0, -0.0, 0.1, 0.30000000000000004, 5e-324, -1e308),
    *(2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), float(2**62), 2**62 + 1),
    *("", "a", "b", "ab", "é", "\U0001f600", "\uffff", "a'b", "1", "true", "null"),
    *([], ["a", 1, 1.0], [None, True, "é"], [[1], {"a": 1}, "b"], {"a": 1}, {"b": {"a": "x"}}),
]
"""Values of metadata of every kind, near to each other where kinds or digits are confused."""

KEYS = ("a", "b", "größe", "label")


def plain_metadata(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    held = [key for key in KEYS if generator.random() < 0.8]
    return {key: VALUES[generator.integers(len(VALUES))] for key in held}


def made_items(n: int) -> list[NewItem]:
    labels = (None, "a", "é", "shoe")
    return [
        NewItem(f"item {row:04d}", labels[row % 4], plain_metadata(row), PICTURE)
        for row in range(n)
    ]


ITEMS = made_items(700)


def written(directory: Path, items: list[NewItem], **asked: Any) -> FaissGallery:
    directory.mkdir()
    write_faiss_gallery(
        directory, random_embeddings(len(items), 4, 0), items, "the-encoder", IndexSettings(**asked)
    )
    return FaissGallery(directory)


def without_indexes(directory: Path) -> FaissGallery:
    """The same gallery as an older release wrote it."""
    for name in (FIELDS_FILE, COLUMNS_FILE):
        (directory / name).unlink()
    return FaissGallery(directory)


@pytest.fixture(scope="module")
def galleries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, FaissGallery]:
    folder = tmp_path_factory.mktemp("galleries")
    indexed = written(folder / "bundle", ITEMS)
    for how in ("memory", "none"):
        written(folder / how, ITEMS)
    old = {how: without_indexes(folder / how) for how in ("memory", "none")}
    return {"bundle": indexed, **old}


NEAR = st.sampled_from([value for value in VALUES if not isinstance(value, (list, dict))])
ASKED = st.one_of(
    st.tuples(NAMES, st.sampled_from(["eq", "ne", "has"]), NEAR),
    st.tuples(NAMES, st.just("in"), st.lists(NEAR, max_size=25)),
    st.tuples(
        NAMES,
        st.sampled_from(["gt", "gte", "lt", "lte"]),
        NEAR.filter(lambda value: value is not None and not isinstance(value, bool)),
    ),
).map(lambda parts: {parts[0]: {parts[1]: parts[2]}})


def matching(gallery: Gallery, how: str, where: dict[str, Any]) -> Allowed:
    """The rows that pass, by indexes or by looking at each item."""
    n_bytes = 0 if how == "none" else LEARNED_BYTES
    with patch.object(fields, "LEARNED_BYTES", n_bytes):
        return gallery.matching(parse_filter(where))


@settings(max_examples=150)
@given(
    asked=st.lists(ASKED | FILTERS, min_size=1, max_size=4), joined=st.sampled_from(["and", "or"])
)
@pytest.mark.slow
def test_indexes_find_what_looking_at_each_item_finds(
    galleries: Mapping[str, FaissGallery], asked: list[dict[str, Any]], joined: str
) -> None:
    where = json.loads(json.dumps({joined: asked}))
    expected = np.array([holds(where, item) for item in ITEMS])
    rows = np.random.default_rng(0).permutation(len(ITEMS))
    for how, gallery in galleries.items():
        allowed = matching(gallery, how, where)
        np.testing.assert_array_equal(allowed.mask(), expected, how)
        np.testing.assert_array_equal(allowed.rows(), np.flatnonzero(expected), how)
        np.testing.assert_array_equal(allowed.at(rows), expected[rows], how)
        assert allowed.at_most >= expected.sum()
        assert 0 <= allowed.share <= 1
        places = set(allowed.indexes.values())
        assert places <= ({"bundle", "memory"} if how == "bundle" else {how})


@pytest.mark.parametrize("how", ["bundle", "memory"])
def test_integers_beyond_64_bits_and_broken_text_are_compared_as_sqlite_does(
    tmp_path: Path, how: str
) -> None:
    values = [10**400, -(10**400), 2**64 + 1, 2**64, 2**63, 1e300, "\ud800", "a\ud800", "a\0b"]
    items = [NewItem(f"{row}", None, {"a": one}, PICTURE) for row, one in enumerate(values)]
    gallery = written(tmp_path / "it", items)
    old = without_indexes(tmp_path / "it")
    numbers = (2.0**64, 2.0**63, 1e300, 9e18, 2**63 - 1)
    asked = [*itertools.product(("eq", "gt", "gte", "lt"), (*numbers, "a", "b", "\U0001f600"))]
    for comparison, value in asked:
        where = {"a": {comparison: value}}
        indexed = matching(gallery if how == "bundle" else old, how, where).mask()
        looked_at = matching(FaissGallery(tmp_path / "it"), "none", where).mask()
        np.testing.assert_array_equal(indexed, looked_at, str(where))


N, DIM = 3_000, 8


@pytest.fixture(scope="class")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> FaissGallery:
    generator = np.random.default_rng(1)
    centres = generator.standard_normal((40, DIM))
    mean = centres[np.arange(N) % 40] + 0.3 * generator.standard_normal((N, DIM))
    embeddings = Embeddings(
        mean.astype(np.float32),
        np.full((N, DIM), 0.1, np.float32),
        np.empty((N, 0), np.float32),
    )
    place = generator.permutation(N).tolist()
    items = [
        NewItem(f"{row:04d}", f"{row % 40}", {"place": place[row]}, PICTURE) for row in range(N)
    ]
    directory = tmp_path_factory.mktemp("clustered")
    write_faiss_gallery(directory, embeddings, items, "e", IndexSettings("ivf_sq8", min_recall=0.9))
    return FaissGallery(directory)


class TestPlans:
    """Of a clustered gallery with an approximate index; of 3,000 items, 100 are few."""

    @pytest.mark.parametrize(
        ("where", "n"),
        [
            ({"place": {"gte": 1000, "lt": 1060}}, 60),
            ({"and": [{"place": {"gte": 1000}}, {"label": "3"}, {"place": {"lt": 1060}}]}, 60),
            ({"not": {"or": [{"place": {"lt": 1000}}, {"place": {"gte": 1060}}]}}, 60),
            ({"or": [{"place": {"lt": 30}}, {"place": {"lt": 20}}, {"place": 31}]}, 31),
        ],
    )
    def test_knows_how_many_rows_conditions_on_a_field_let_through(
        self, clustered: FaissGallery, where: dict[str, Any], n: int
    ) -> None:
        """Each by itself lets more through; no row is looked at to know of both."""
        assert clustered.matching(parse_filter(where)).at_most == n

    @pytest.mark.parametrize(
        ("where", "plan"),
        [
            ({"place": {"lt": 60}}, "exact"),
            ({"place": {"lt": 600}}, "filter_first"),
            ({"place": {"lt": 600}, "id": {"lt": "0300"}}, "exact"),
            ({"place": {"gte": 600}}, "search_first"),
            ({"not": {"place": 5}}, "search_first"),
            ({"label": {"in": [f"{n}" for n in range(20)]}}, "search_first"),
            ({"or": [{"place": {"gte": 1500}}, {"label": "3"}]}, "search_first"),
        ],
    )
    def test_is_chosen_by_the_share_and_changes_nothing(
        self, clustered: FaissGallery, where: dict[str, Any], plan: str
    ) -> None:
        allowed = clustered.matching(parse_filter(where))
        mask = allowed.mask()
        queries = clustered.directions(np.flatnonzero(mask)[:8])
        with patch.object(index_search, "EXACT_ROWS", 100):
            found = [clustered.candidates(query[None], 10, allowed) for query in queries]
            together = clustered.candidates(queries, 10, allowed)
            with patch.object(index_search, "SEARCH_FIRST_SHARE", 2):
                first = [clustered.candidates(query[None], 10, allowed) for query in queries]
                same = clustered.candidates(queries, 10, MaskedRows(mask.copy()))
        assert {one.plan for one in found} == {plan}
        assert "search_first" not in {one.plan for one in first}
        for one, alone in zip(found, together.rows, strict=True):
            np.testing.assert_array_equal(one.rows[0], alone)
        for one, other, masked in zip(found, first, same.rows, strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.similarities, other.similarities)
            np.testing.assert_array_equal(one.rows[0], masked)
            assert mask[one.rows].all()

    def test_a_filter_that_keeps_to_the_far_side_is_searched_for_after_all(
        self, clustered: FaissGallery
    ) -> None:
        """Half of the items pass, and none that is near: a search for more than enough fails."""
        query = clustered.directions(np.array([0]))
        far = np.argsort(clustered.directions(np.arange(N)) @ query[0])[: N // 2]
        mask = np.zeros(N, dtype=bool)
        mask[far] = True
        near = clustered.directions(far[:1])
        with patch.object(index_search, "EXACT_ROWS", 100):
            found = clustered.candidates(query, 10, MaskedRows(mask))
            alone = clustered.candidates(near, 10, MaskedRows(mask))
            together = clustered.candidates(np.concatenate([near, query]), 10, MaskedRows(mask))
        assert alone.plan == "search_first"
        np.testing.assert_array_equal(together.rows, [alone.rows[0], found.rows[0]])
        assert found.plan == "filter_first"
        assert mask[found.rows].all()
        assert found.rows.shape == (1, 10)


class TestALiveGallery:
    @pytest.fixture
    def live(self, tmp_path: Path) -> LiveGallery:
        base = written(tmp_path / "base", ITEMS[:50])
        return LiveGallery(base, ChangesFile(tmp_path / "changes.sqlite", "b", "the-encoder"))

    @staticmethod
    def upsert(item: NewItem) -> Upsert:
        embedding = random_embeddings(1, 4, seed=len(item.id))
        return Upsert(item, Vector(embedding.mean[0], embedding.variance[0]))

    WHERES: tuple[dict[str, Any], ...] = (
        {"a": {"gte": 0}},
        {"a": {"has": "a"}},
        {"or": [{"b": {"exists": False}}, {"label": "é"}]},
        {"not": {"größe": {"in": ["a", 1, None]}}, "id": {"gt": "item 0003"}},
    )

    def test_keeps_its_indexes_whatever_is_written(self, live: LiveGallery) -> None:
        """Also for those who still search an earlier state."""
        there = {item.id: item for item in ITEMS[:50]}
        states: list[tuple[Gallery, dict[str, NewItem]]] = []
        with patch.object(snapshot, "RUN", 4):
            for step in range(30):
                old = ITEMS[step]
                changed = [replace(old, metadata=plain_metadata(1000 + step)), ITEMS[100 + step]]
                writes: list[Upsert | Delete] = [self.upsert(item) for item in changed]
                there |= {item.id: item for item in changed}
                if step % 3 == 2:
                    gone = ITEMS[100 + step - 1].id
                    del there[gone]
                    writes.append(Delete(gone))
                live.commit(writes)
                states.append((live.snapshot(), dict(there)))
                self.require_right(*states[-1])
            for state in states[::7]:
                self.require_right(*state)

    def require_right(self, gallery: Gallery, there: dict[str, NewItem]) -> None:
        for where in self.WHERES:
            allowed = gallery.matching(parse_filter(where))
            expected = {item.id for item in there.values() if holds(where, item)}
            rows = allowed.rows()
            assert {item.id for item in gallery.items(rows)} == expected
            np.testing.assert_array_equal(np.flatnonzero(allowed.mask()), rows)
            every = np.arange(gallery.n_rows)
            np.testing.assert_array_equal(np.flatnonzero(allowed.at(every)), rows)
            assert allowed.at_most >= len(rows)
            assert 0 <= allowed.share <= 1
            query = random_embeddings(1, 4, seed=7).mean
            query /= np.linalg.norm(query)
            found = gallery.candidates(query, gallery.n_rows, allowed)
            assert set(found.rows[0].tolist()) == set(rows.tolist())

    def test_indexes_few_items_after_each_change(self, live: LiveGallery) -> None:
        with patch.object(snapshot, "RUN", 4):
            live.commit([self.upsert(item) for item in ITEMS[100:127]])
            lengths = [len(run) for run in snapshot.runs(27)]
        assert lengths == [16, 8, 3]

    @pytest.mark.parametrize("n", [3, 4, 5, 6])
    def test_finds_every_item_beside_the_end_of_a_run(self, live: LiveGallery, n: int) -> None:
        with patch.object(snapshot, "RUN", 4):
            live.commit([self.upsert(item) for item in ITEMS[100 : 100 + n]])
            every = live.snapshot().matching(parse_filter({"id": {"exists": True}}))
            assert every.mask().sum() == 50 + n


class TestFiles:
    def test_a_bundle_of_old_is_indexed_as_it_is_asked(self, tmp_path: Path) -> None:
        written(tmp_path / "it", ITEMS)
        old = without_indexes(tmp_path / "it")
        part = parse_filter({"a": {"gte": 0}, "label": "é"})
        assert old.matching(part).indexes == {"a": "memory", "label": "memory"}

    def test_the_same_items_make_the_same_files(self, tmp_path: Path) -> None:
        for name, items in (("one", ITEMS), ("other", ITEMS[::-1])):
            written(tmp_path / name, items)
        for name in (FIELDS_FILE, COLUMNS_FILE):
            assert (tmp_path / "one" / name).read_bytes() == (
                tmp_path / "other" / name
            ).read_bytes()

    def test_fields_that_are_named_are_indexed_and_no_others(self, tmp_path: Path) -> None:
        gallery = written(tmp_path / "it", ITEMS, filter_fields=("b.a", "nothing"))
        asked = {"b.a": "x", "nothing": 1, "a": 1, "label": "é", "id": {"gt": "a"}}
        found = gallery.matching(parse_filter(asked)).indexes
        assert found == {
            "b.a": "bundle",
            "nothing": "bundle",
            "a": "memory",
            "label": "bundle",
            "id": "bundle",
        }
        assert gallery.filter_fields == ("b.a", "nothing")

    @pytest.mark.parametrize(("named", "of_a"), [(None, "memory"), (("a",), "bundle")])
    def test_index_of_a_named_field_is_stored_whatever_its_size(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        named: tuple[str, ...] | None,
        of_a: str,
    ) -> None:
        monkeypatch.setattr(fields, "BYTES_OF_AN_ITEM", 0)
        gallery = written(tmp_path / "it", ITEMS[:9], filter_fields=named)
        found = gallery.matching(parse_filter({"id": "x", "label": "x", "a": "x"})).indexes
        assert found == {"id": "bundle", "label": "bundle", "a": of_a}

    def test_a_name_that_no_field_has_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be named"):
            written(tmp_path / "it", ITEMS, filter_fields=("a..b",))

    def test_fields_that_no_filter_can_name_are_not_counted(self) -> None:
        seen = fields.FieldsSeen()
        seen.add({"a": 1, "": 2, "b": {"": 3, "c": 4}})
        assert set(seen._seen) == {("a",), ("b", "c")}

    def test_of_very_many_fields_those_seen_first_are_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fields, "_MOST_SEEN", 2)
        seen = fields.FieldsSeen()
        seen.add({"a": 1, "b": 2, "c": 3})
        seen.add({"a": 1, "c": 3})
        assert {path: n for path, (n, _) in seen._seen.items()} == {("a",): 2, ("b",): 1}

    def test_long_texts_are_left_to_be_asked_for(self, tmp_path: Path) -> None:
        items = [
            NewItem(f"{row:04d}", None, {"caption": f"{row} " * 100, "year": row}, PICTURE)
            for row in range(40)
        ]
        gallery = written(tmp_path / "it", items)
        part = parse_filter({"year": {"lt": 5}, "caption": {"gt": ""}})
        assert gallery.matching(part).indexes == {"year": "bundle", "caption": "memory"}

    def test_indexes_in_memory_make_room_for_others(self, tmp_path: Path) -> None:
        """Those that were asked for longest ago, of as many bytes as it takes."""
        written(tmp_path / "it", ITEMS)
        without_indexes(tmp_path / "it")
        columns = FieldColumns(tmp_path / "it", len(ITEMS))
        a, b, c = (parse_field(name) for name in ("a", "b", "größe"))
        with closing(sqlite3.connect(tmp_path / "it" / ITEMS_FILE)) as items:

            def of(*names: Field) -> list[Column]:
                """Ask for fields one after another."""
                return [columns.of([name], items)[0][name] for name in names]

            asked, _ = columns.of([a, b, c], items)
            sizes = {name: column.n_bytes for name, column in asked.items()}
            columns = FieldColumns(tmp_path / "it", len(ITEMS))
            with patch.object(fields, "LEARNED_BYTES", sizes[a] + max(sizes[b], sizes[c])):
                first = of(a, b, a, c)
                assert [*map(id, of(c, a))] == [id(first[3]), id(first[0])]
                assert of(b)[0] is not first[1]
            columns = FieldColumns(tmp_path / "it", len(ITEMS))
            with patch.object(fields, "MOST_LEARNED", 2):
                first = of(a, b, a, c)
                assert [*map(id, of(c, a))] == [id(first[3]), id(first[0])]
                assert of(b)[0] is not first[1]
            with patch.object(fields, "LEARNED_BYTES", min(sizes.values()) - 1):
                assert columns.of([parse_field("id")], items) == ({}, {"id": "none"})

    def test_a_field_that_cannot_be_sorted_is_looked_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As SQLite does so in temporary files: the gallery is whole, and filters are answered."""

        def refused(connection: sqlite3.Connection, field: Field, *_: Any) -> Column | None:
            if field.name == "a":
                raise sqlite3.OperationalError("database or disk is full")
            return column_of(connection, field, *_)

        monkeypatch.setattr(fields, "column_of", refused)
        gallery = written(tmp_path / "it", ITEMS)
        part = parse_filter({"a": {"exists": True}, "label": "é"})
        found = gallery.matching(part)
        assert found.indexes == {"a": "none", "label": "bundle"}
        monkeypatch.undo()
        found_again = FaissGallery(tmp_path / "it").matching(part)
        assert found_again.indexes == {"a": "memory", "label": "bundle"}
        np.testing.assert_array_equal(found.rows(), found_again.rows())
        assert found.rows().size

    def test_a_log_without_a_change_is_damaged(self, tmp_path: Path) -> None:
        log = ChangesFile(tmp_path / "changes.sqlite", "b", "the-encoder")
        live = LiveGallery(written(tmp_path / "it", ITEMS[:9]), log)
        live.commit([TestALiveGallery.upsert(item) for item in ITEMS[20:22]])
        with pytest.raises(LogDamaged, match="between 1 and 3 are missing"):
            log.column(parse_field("a"), np.array([1, 2, 3]))

    def test_a_log_that_is_not_there_is_named_where_it_is_read(self, tmp_path: Path) -> None:
        log = ChangesFile(tmp_path / "changes.sqlite", "b", "the-encoder")
        with pytest.raises(StorageFailed, match="moved or removed") as told:
            log.column(parse_field("a"), np.array([1]))
        assert type(told.value) is StorageFailed  # it is read again when it is moved back


def test_of_many_numbers_only_those_that_are_there_are_looked_at_one_by_one(
    galleries: Mapping[str, FaissGallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[object] = []
    compared = Postings.compared

    def counting(self: Postings, comparison: Comparison, value: Scalar) -> range:
        looked_at.append(value)
        return compared(self, comparison, value)

    monkeypatch.setattr(Postings, "compared", counting)
    values = [*range(300), 0.1, *range(300)]
    for how in ("bundle", "memory"):
        looked_at.clear()
        matching(galleries[how], how, {"a": {"in": values}})
        assert looked_at == [0, 1, 0.1], how


def test_ranges_of_codes_are_joined_and_inverted_as_sets_are() -> None:
    """They are as few as can be, none is empty, and they ascend with a gap between each two."""
    every = range(5)
    ranges = [range(*ends) for ends in itertools.product(range(6), repeat=2)]
    for parts in itertools.product(ranges, repeat=2):
        wanted = {code for part in parts for code in part}
        joined = selection._joined(parts)
        rest = selection._between(joined, every)
        assert {code for part in joined for code in part} == wanted
        assert {code for part in rest for code in part} == set(every) - wanted
        for found in (joined, rest):
            assert all(found)
            assert all(one.stop < other.start for one, other in itertools.pairwise(found))


def test_an_index_takes_just_as_many_bytes_as_it_may() -> None:
    """While its values are gathered, and as a whole."""
    entries = [(NUMBER_KIND, 1, 0), (NUMBER_KIND, 2, 1), (TEXT_KIND, b"abc", 2)]
    assert columns._gathered(entries, 4 * 3 + 3) is not None
    assert columns._gathered(entries, 4 * 3 + 2) is None
    made = columns.make_column(entries, [], 3, 1e9)
    assert made is not None
    assert columns.make_column(entries, [], 3, made.n_bytes) is not None
    assert columns.make_column(entries, [], 3, made.n_bytes - 1) is None


@pytest.mark.parametrize("n_parts", [1, selection._FEW, selection._FEW + 1])
def test_rows_are_those_of_the_codes_however_many_ranges_there_are(n_parts: int) -> None:
    n_rows = 3 * n_parts + 2
    entries = [(NUMBER_KIND, row, row) for row in range(n_rows)]
    column = columns.make_column(entries, [], n_rows, 1e9)
    assert column is not None
    first = columns.FIRST_VALUE
    parts = [range(first + 3 * i, first + 3 * i + 2) for i in range(n_parts)]
    chosen = selection._OfCodes(column, parts)
    wanted = [row % 3 < 2 and row < 3 * n_parts for row in range(n_rows)]
    assert chosen.mask().tolist() == chosen.at(np.arange(n_rows)).tolist() == wanted
    assert chosen.rows().tolist() == np.flatnonzero(wanted).tolist()


@pytest.mark.parametrize(("n_rows", "n_bitmaps"), [(32, 1), (33, 0)])
def test_value_of_one_row_in_32_has_a_bitmap(n_rows: int, n_bitmaps: int) -> None:
    lists = [(columns.LIST, None, row) for row in range(n_rows)]
    column = columns.make_column(lists, [(TEXT_KIND, b"a", 0)], n_rows, 1e9)
    assert column is not None
    assert len(column.bitmaps) == n_bitmaps


@pytest.mark.parametrize("frequent", [0, 10**6])
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("text", ["a", "b"])
def test_rows_whose_lists_hold_a_value_are_found_with_a_bitmap_and_without(
    frequent: int, negated: bool, text: str
) -> None:
    held = [(TEXT_KIND, b"a", row) for row in (1, 4, 9)] + [(TEXT_KIND, b"b", 0)]
    with patch.object(columns, "FREQUENT", frequent):
        column = columns.make_column(
            [(columns.LIST, None, row) for row in range(11)], held, 11, 1e9
        )
    assert column is not None
    chosen = selection._OfHolders(column, column.held.compared("eq", text), negated=negated)
    assert (chosen._bitmap is not None) is (frequent > 0)
    wanted = [(row in {"a": (1, 4, 9), "b": (0,)}[text]) != negated for row in range(11)]
    assert chosen.mask().tolist() == chosen.at(np.arange(11)).tolist() == wanted
    assert chosen.rows().tolist() == np.flatnonzero(wanted).tolist()
    assert chosen.at_most == sum(wanted)


def test_the_share_of_what_is_joined_is_that_of_some_rows_and_at_most_what_is_known() -> None:
    def every_fourth(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.equal(rows % 4, 0)

    sampled = np.random.default_rng(0).integers(0, 1000, selection.N_SAMPLED)
    for at_most, wanted in ((1000, every_fourth(sampled).mean()), (30, 0.03)):
        joined: Any = SimpleNamespace(at=every_fourth, at_most=at_most)
        assert selection.estimated_share(joined, 1000) == wanted


def test_share_of_a_field_is_that_of_its_index_and_of_no_rows_is_zero() -> None:
    entries = [(NUMBER_KIND, row, row) for row in range(3_000)]
    column = columns.make_column(entries, [], 3_000, 1e9)
    assert column is not None
    first = columns.FIRST_VALUE
    for n in range(300, 3_000, 300):
        part = selection._OfCodes(column, [range(first, first + n)])
        assert selection.estimated_share(part, 3_000) == n / 3_000
    assert selection.estimated_share(selection._OfAny([], 0), 0) == 0


@pytest.mark.parametrize(("n_rows", "at_most"), [(4, 4), (5, 5), (6, 5)])
def test_union_has_at_most_the_rows_of_its_parts_together(n_rows: int, at_most: int) -> None:
    parts: list[Any] = [SimpleNamespace(at_most=n) for n in (2, 3)]
    assert selection._OfAny(parts, n_rows).at_most == at_most


def test_true_is_found_among_numbers() -> None:
    entries = [(columns.TRUE, None, 0), (NUMBER_KIND, 2, 1)]
    column = columns.make_column(entries, [], 2, 1e9)
    assert column is not None
    for value, row in ((True, 0), (2, 1)):
        [codes] = column.values.equal_to([value])
        assert column.values.of(codes).tolist() == [row]


def test_lists_that_take_too_many_bytes_have_no_index() -> None:
    lists, held = [(columns.LIST, None, 0)], [(TEXT_KIND, b"x" * 50, 0)]
    assert columns.make_column(lists, held, 1, 20) is None


@pytest.mark.parametrize(("numbers", "n_values"), [([1, 2, 3], 0), ([1, 2, 2], 2)])
def test_values_of_a_facet_are_those_of_a_field_that_repeats_one(
    numbers: list[int], n_values: int
) -> None:
    entries = [(NUMBER_KIND, number, row) for row, number in enumerate(numbers)]
    column = columns.make_column(entries, [], 3, 1e9)
    assert column is not None
    assert len(facet_of("a", [Counted(column)], 9).values) == n_values
