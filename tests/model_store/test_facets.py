"""What fields hold, read off their indexes, is what counting every item gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.gallery import (
    Delete,
    FaissGallery,
    IndexSettings,
    NewItem,
    Upsert,
    Vector,
    write_faiss_gallery,
)
from model_store.gallery.filters import columns
from model_store.gallery.filters.grammar import Scalar
from model_store.records import Facet
from tests.laws.gallery_laws import random_embeddings
from tests.support.filters_in_words import PICTURE
from tests.support.live_bundles import DIM, opened, published

COLOURS = ("red", "green", "blue", "rød")
MANY = 2**53 + 1  # no float64 is as exact
METADATA: list[dict[str, Any]] = [
    {
        "colour": COLOURS[row % 7 % 4],
        "price": row / 4 if row % 3 else MANY,
        "sold": row % 5 == 0,
        "tags": [COLOURS[row % 4], COLOURS[row % 3]],
        "maker": {"name": "Ono" if row % 2 else None},
        "file": f"{row}.png",
    }
    | ({"mixed": row} if row < 10 else {"mixed": [1, "a"]})
    for row in range(60)
]
LABELS = [None if row % 6 == 0 else f"label {row % 3}" for row in range(60)]
ITEMS = [
    NewItem(f"item {row:04d}", label, metadata, PICTURE)
    for row, (label, metadata) in enumerate(zip(LABELS, METADATA, strict=True))
]


def counts(facet: Facet) -> list[tuple[object, int]]:
    """Return each value of a field with its number of items."""
    return [(one.value, one.n_items) for one in facet.values]


@pytest.fixture(scope="module")
def facets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facet]:
    directory = tmp_path_factory.mktemp("gallery")
    write_faiss_gallery(directory, random_embeddings(60, 4, 0), ITEMS, "e", IndexSettings())
    return {facet.field: facet for facet in FaissGallery(directory).facets(3)}


def test_values_are_counted_and_the_most_frequent_come_first(facets: dict[str, Facet]) -> None:
    expected = Counter(one["colour"] for one in METADATA)
    colour = facets["colour"]
    assert (colour.comparison, colour.n_items, colour.n_values) == ("eq", 60, 4)
    in_order = sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))
    assert counts(colour) == in_order[:3]
    assert counts(facets["sold"]) == [(False, 48), (True, 12)]
    labels = Counter(label for label in LABELS if label is not None)
    assert dict(counts(facets["label"])) == labels
    assert facets["label"].n_items == 50


def test_numbers_have_a_range_and_keep_every_digit(facets: dict[str, Facet]) -> None:
    price = facets["price"]
    assert (price.least, price.greatest) == (0.25, float(MANY))
    assert counts(price)[0] == (MANY, 20)
    assert facets["colour"].least is None


def test_of_lists_it_is_their_parts_that_count(facets: dict[str, Facet]) -> None:
    tags = facets["tags"]
    held = Counter(tag for one in METADATA for tag in set(one["tags"]))
    assert (tags.comparison, tags.n_items, tags.n_values) == ("has", 60, 3 + 1)
    assert dict(counts(tags)) == dict(held.most_common(3))
    assert facets["mixed"].comparison == "has"  # as most items have it


@pytest.mark.parametrize(("n_lists", "comparison"), [(1, "eq"), (2, "eq"), (3, "has")])
def test_a_field_is_of_lists_where_more_items_have_one_than_a_value(
    tmp_path: Path, n_lists: int, comparison: str
) -> None:
    values = [["red"]] * n_lists + ["red"] * 2 + [None]
    items = [
        NewItem(f"{row}", None, {"colour": value}, PICTURE) for row, value in enumerate(values)
    ]
    write_faiss_gallery(tmp_path, random_embeddings(len(items), 4, 0), items, "e", IndexSettings())
    facets = {facet.field: facet for facet in FaissGallery(tmp_path).facets(3)}
    of_colour = facets["colour"]
    n = n_lists if comparison == "has" else 2
    assert (of_colour.comparison, of_colour.n_items, of_colour.n_values) == (comparison, n, 1)
    assert counts(of_colour) == [("red", n)]


def test_an_object_has_facets_of_its_own_and_null_is_no_value(facets: dict[str, Facet]) -> None:
    assert counts(facets["maker.name"]) == [("Ono", 30)]


def test_what_is_another_in_each_item_has_no_values_to_choose_by(facets: dict[str, Facet]) -> None:
    assert counts(facets["file"]) == []
    assert facets["file"].n_values == 60
    assert "id" not in facets


def changed(row: int) -> NewItem:
    """An item as it is put into the live gallery: known values, new ones, and other kinds."""
    metadata = METADATA[row % 60] | {
        "price": row % 4 - 1 if row % 5 else True,
        "colour": f"{row % 9}",
    }
    metadata |= {"tags": [COLOURS[row % 4], f"new {row % 3}"], "maker": {"name": row % 2}}
    return NewItem(f"item {7 * row % 400:04d}", f"label {row % 5}", metadata, PICTURE)


def test_what_is_written_counts_at_once(tmp_path: Path) -> None:
    there = {item.id: item for item in ITEMS}
    root = published(tmp_path, random_embeddings(60, DIM, 0), ITEMS)
    live = opened(root)
    mean, variance = np.ones((2, DIM), np.float32)
    for start in range(0, 600, 100):  # more than a run of indexes, and some after it
        puts = [changed(row) for row in range(start, start + 100)]
        live.commit([Upsert(item, Vector(mean, variance)) for item in puts])
        there |= {item.id: item for item in puts}
        gone = sorted(there)[start // 50 :: 9]
        live.commit([Delete(item_id) for item_id in gone])
        for item_id in gone:
            del there[item_id]
        now = [there[item_id] for item_id in sorted(there)]
        directory = tmp_path / f"anew {start}"
        directory.mkdir()
        settings = IndexSettings(
            filter_fields=("colour", "price", "sold", "tags", "mixed", "file", "maker.name")
        )
        write_faiss_gallery(directory, random_embeddings(len(now), DIM, 0), now, "e", settings)
        anew = {facet.field: facet for facet in FaissGallery(directory).facets(4)}
        found = {facet.field: facet for facet in live.snapshot().facets(4)}
        assert found == {field: anew[field] for field in found}
        assert {"label", "colour", "price", "tags", "mixed", "maker.name", "file"} <= set(found)


def test_values_ascend_by_kind_and_numbers_by_size() -> None:
    ascending: list[Scalar] = [False, True, -2, -0.5, 0, 0.25, 3, "", "a", "é"]
    orders = [columns._order(value) for value in ascending]
    assert orders == sorted(set(orders))


@pytest.mark.parametrize("most", range(1, 9))
def test_the_most_frequent_are_those_of_a_sorted_list(most: int) -> None:
    generator = np.random.default_rng(0)
    for n in range(1, 10):
        counts = generator.integers(0, 4, n)
        wanted = sorted(np.flatnonzero(counts).tolist(), key=lambda place: -counts[place])
        assert columns._most_frequent(counts, most) == wanted[:most]
