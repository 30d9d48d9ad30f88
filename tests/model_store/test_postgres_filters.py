"""Filters asked of PostgreSQL, against what they mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.gallery import NewItem, parse_filter
from model_store.gallery.postgres.database import PostgresAccess
from model_store.gallery.postgres.filter import to_condition
from model_store.gallery.postgres.gallery import PostgresGallery
from model_store.gallery.postgres.live import PostgresLive
from tests.laws.gallery_laws import random_embeddings
from tests.laws.writable_laws import upserts
from tests.support.filters_in_words import EXAMPLES, FILTERS, ITEMS, METADATA, PICTURE, TEXT, holds
from tests.support.postgres import a_postgres, write_postgres_gallery

pytestmark = pytest.mark.slow

TOLD = [NewItem(i.id, i.label, {**i.metadata, "half": "-"}, i.thumbnail) for i in ITEMS]
"""`ITEMS` without what PostgreSQL does not take."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresLive]:
    directory = tmp_path_factory.mktemp("postgres")
    with a_postgres() as uri:
        items = [NewItem(item_id, None, {}, PICTURE) for item_id in "abcd"]
        access = PostgresAccess(uri)
        address = "postgresql://db.example/vouch"
        embeddings = random_embeddings(4, 3, seed=0)
        write_postgres_gallery(directory, embeddings, items, "e", address, access=access)
        opened = PostgresLive(PostgresGallery(directory, access), lambda: None)
        yield opened
        opened.close()


def found(live: PostgresLive, asked: dict[str, Any]) -> list[str]:
    gallery = live.snapshot()
    rows = gallery.matching(parse_filter(asked)).rows()
    return sorted(item.id for item in gallery.items(rows))


def put(live: PostgresLive, items: Sequence[NewItem]) -> None:
    live.commit(upserts(random_embeddings(len(items), 3, seed=0), items))


@settings(max_examples=100, deadline=None)
@given(asked=FILTERS, labels=st.lists(st.none() | TEXT, min_size=4, max_size=4), data=st.data())
def test_postgres_finds_what_the_description_says(
    live: PostgresLive, asked: dict[str, Any], labels: list[Any], data: Any
) -> None:
    asked = json.loads(json.dumps(asked))
    items = [
        NewItem(item_id, label, data.draw(METADATA), PICTURE)
        for item_id, label in zip("abcd", labels, strict=True)
    ]
    put(live, items)
    assert found(live, asked) == [item.id for item in items if holds(asked, item)]


@pytest.fixture(scope="module")
def told(live: PostgresLive) -> PostgresLive:
    put(live, TOLD)
    return live


@pytest.mark.parametrize(("asked", "ids"), EXAMPLES)
def test_examples(told: PostgresLive, asked: dict[str, Any], ids: str) -> None:
    assert found(told, asked) == list(ids)


@pytest.mark.parametrize(
    "asked",
    [
        {"label": "' OR TRUE OR id = '"},
        {"label": {"gte": "z' OR TRUE --"}},
        {"label": {"gte": "z%s"}},
        {"id": {"in": ["a') OR (TRUE"]}},
        {"tags": {"has": "\"]}' OR TRUE --"}},
        {"a' OR TRUE OR 'b": {"gt": 0}},
    ],
)
def test_text_that_looks_like_an_expression_is_text(
    told: PostgresLive, asked: dict[str, Any]
) -> None:
    assert found(told, asked) == []


def test_no_text_of_a_filter_is_in_the_condition() -> None:
    asked = {"secret": "secret", "or": [{"a.secret": {"has": "secret"}}, {"b": {"gt": "secret"}}]}
    assert "secret" not in to_condition(parse_filter(asked))[0]
