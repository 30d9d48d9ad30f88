"""Filters asked of Milvus, against what they mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.gallery import NewItem, parse_filter
from model_store.gallery.milvus.collection import MilvusAccess
from model_store.gallery.milvus.entities import to_expression
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.live import MilvusLive, open_milvus
from tests.laws.gallery_laws import random_embeddings
from tests.laws.writable_laws import upserts
from tests.support.filters_in_words import EXAMPLES, FILTERS, ITEMS, METADATA, PICTURE, TEXT, holds
from tests.support.milvus import IS_REAL, a_milvus, write_milvus_gallery

pytestmark = pytest.mark.slow

TOLD = [NewItem(i.id, i.label, {**i.metadata, "half": "-"}, i.thumbnail) for i in ITEMS]
"""`ITEMS` without what Milvus does not take."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusLive]:
    directory = tmp_path_factory.mktemp("milvus")
    with a_milvus(directory / "filters.db") as uri:
        items = [NewItem(item_id, None, {}, PICTURE) for item_id in "abcd"]
        write_milvus_gallery(directory, random_embeddings(4, 3, seed=0), items, "e", uri)
        opened = open_milvus(
            MilvusGallery(directory, MilvusAccess(uri)), directory / "changes", lambda: None
        )
        yield opened
        opened.snapshot().close()
        opened.close()


def found(live: MilvusLive, asked: dict[str, Any]) -> list[str]:
    gallery = live.snapshot()
    rows = gallery.matching(parse_filter(asked)).rows()
    return sorted(item.id for item in gallery.items(rows))


def put(live: MilvusLive, items: Sequence[NewItem]) -> None:
    live.commit(upserts(random_embeddings(len(items), 3, seed=0), items))


@settings(max_examples=12 if IS_REAL else 60)
@given(asked=FILTERS, labels=st.lists(st.none() | TEXT, min_size=4, max_size=4), data=st.data())
def test_milvus_finds_what_the_description_says(
    live: MilvusLive, asked: dict[str, Any], labels: list[Any], data: Any
) -> None:
    asked = json.loads(json.dumps(asked))
    items = [
        NewItem(item_id, label, data.draw(METADATA), PICTURE)
        for item_id, label in zip("abcd", labels, strict=True)
    ]
    put(live, items)
    assert found(live, asked) == [item.id for item in items if holds(asked, item)]


@pytest.fixture(scope="module")
def told(live: MilvusLive) -> MilvusLive:
    put(live, TOLD)
    return live


@pytest.mark.parametrize(("asked", "ids"), EXAMPLES)
def test_examples(told: MilvusLive, asked: dict[str, Any], ids: str) -> None:
    assert found(told, asked) == list(ids)


@pytest.mark.parametrize(
    "asked",
    [
        {"label": '" or row >= 0 or id == "'},
        {"label": {"gte": 'z" or row >= 0 or label == "'}},
        {"label": {"gte": 'z\\" or row >= 0 or label == "'}},
        {"label": {"gte": "z\n) or (row >= 0"}},
        {"id": {"in": ['a"] or row in [0']}},
        {"tags": {"has": '") or row >= 0 or array_contains(facts, "'}},
        {"a'] or row >= 0 or metadata['b": {"gt": 0}},
    ],
)
def test_text_that_looks_like_an_expression_is_text(
    told: MilvusLive, asked: dict[str, Any]
) -> None:
    assert found(told, asked) == []


def test_what_is_asked_by_equality_is_not_in_the_expression() -> None:
    asked = {"label": "secret", "or": [{"a": {"has": "secret"}}, {"b": {"in": ["secret"]}}]}
    assert "secret" not in to_expression(parse_filter(asked))
