"""Stores of others, with their real engines: what they find is decided as the gallery's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import Retriever, VectorQuery, open_bundle
from model_store.errors import InvalidVector
from model_store.images import decode_image
from model_store.stores import (
    FaissStore,
    LanceStore,
    PgvectorStore,
    QdrantStore,
    Store,
    search_and_decide,
)
from tests.support.postgres import a_postgres

pytestmark = [pytest.mark.slow, pytest.mark.process]


@pytest.fixture(scope="module")
def retriever(digits_bundle: Path) -> Retriever:
    return open_bundle(digits_bundle, "cpu").retriever


@pytest.fixture(scope="module")
def queries(digits_bundle: Path, retriever: Retriever) -> list[VectorQuery]:
    files = sorted((digits_bundle / "samples").iterdir())
    pixels = np.stack([retriever.prepare(decode_image(path.read_bytes())) for path in files])
    found = retriever.encoder.encode(pixels)
    return [
        VectorQuery(found.mean[row], found.variance[row], found.features[row])
        for row in range(len(found))
    ]


class Items:
    """All items of the gallery, as somebody would put them into a store."""

    def __init__(self, retriever: Retriever) -> None:
        rows = np.arange(retriever.gallery.n_items)
        self.items = retriever.gallery.items(rows)
        self.ids = [item.id for item in self.items]
        self.labels = [item.label for item in self.items]
        self.vectors: NDArray[np.float32] = retriever.gallery.directions(rows)


@pytest.fixture(scope="module")
def items(retriever: Retriever) -> Items:
    return Items(retriever)


def qdrant(items: Items, distance: str = "Cosine", name: str | None = None) -> QdrantStore:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client's own
        from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    params = models.VectorParams(size=items.vectors.shape[1], distance=models.Distance(distance))
    client.create_collection("digits", vectors_config=params if name is None else {name: params})
    vectors = (items.vectors * 2.5).tolist()
    points = [
        models.PointStruct(
            id=place,
            vector=vector if name is None else {name: vector},
            payload={"name": items.ids[place], "label": items.labels[place]},
        )
        for place, vector in enumerate(vectors)
    ]
    client.upsert("digits", points)
    return QdrantStore(client, "digits", id="name", vector=name)


def of_faiss(items: Items, *, euclidean: bool = False) -> FaissStore:
    dim = items.vectors.shape[1]
    index = faiss.IndexFlatL2(dim) if euclidean else faiss.IndexFlatIP(dim)
    index.add(items.vectors)
    return FaissStore(index, items.ids, items.labels)


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    """A real PostgreSQL with pgvector."""
    import psycopg

    with (
        a_postgres() as address,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        connection.execute("CREATE EXTENSION vector")
        yield connection


def put_into_postgres(connection: Any, items: Items, *, indexed: bool) -> PgvectorStore:
    table = f'Odd "names".{"indexed" if indexed else "plain"}'
    connection.execute('CREATE SCHEMA IF NOT EXISTS "Odd ""names"""')
    quoted = table.replace('Odd "names"', '"Odd ""names"""')
    dim = items.vectors.shape[1]
    connection.execute(
        f"CREATE TABLE {quoted} (id text PRIMARY KEY, label text, embedding vector({dim}))"
    )
    with connection.cursor() as cursor:
        rows = zip(items.ids, items.labels, items.vectors.tolist(), strict=True)
        cursor.executemany(
            f"INSERT INTO {quoted} VALUES (%s, %s, %s)",
            [(name, label, str(vector)) for name, label, vector in rows],
        )
    if indexed:
        connection.execute(f"CREATE INDEX ON {quoted} USING hnsw (embedding vector_cosine_ops)")
        connection.execute("SET enable_seqscan = off")
    return PgvectorStore(connection, table)


def lance(items: Items, place: Path) -> LanceStore:
    import lancedb

    rows = [
        {"id": name, "label": label, "vector": vector}
        for name, label, vector in zip(
            items.ids, items.labels, (items.vectors * 2.5).tolist(), strict=True
        )
    ]
    return LanceStore(lancedb.connect(place).create_table("digits", rows))


OPEN: dict[str, Callable[[Items, Any, Path], Store]] = {
    "qdrant": lambda items, *_: qdrant(items),
    "qdrant, named": lambda items, *_: qdrant(items, name="image"),
    "qdrant, by dot product": lambda items, *_: qdrant(items, "Dot"),
    "qdrant, by distance, named": lambda items, *_: qdrant(items, "Euclid", "image"),
    "faiss": lambda items, *_: of_faiss(items),
    "faiss, euclidean": lambda items, *_: of_faiss(items, euclidean=True),
    "pgvector": lambda items, database, _: put_into_postgres(database, items, indexed=False),
    "pgvector, hnsw": lambda items, database, _: put_into_postgres(database, items, indexed=True),
    "lancedb": lambda items, _, place: lance(items, place),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_a_store_finds_is_decided_as_the_gallery_decides(
    name: str,
    retriever: Retriever,
    queries: list[VectorQuery],
    items: Items,
    database: Any,
    tmp_path: Path,
) -> None:
    store = OPEN[name](items, database, tmp_path)
    for query in queries:
        answer = search_and_decide(retriever, store, query)
        predictive = answer.decided.predictive
        own = retriever.find(predictive, limit=10)
        decision = answer.decided.decision
        assert decision.verdict == own.decision.verdict
        assert decision.match_probabilities is not None
        expected = {match.id: match for match in own.matches}
        shown = [place for place, one in enumerate(answer.neighbours.ids) if one in expected]
        assert len(shown) == 10
        for place in shown:
            match = expected[answer.neighbours.ids[place]]
            assert answer.neighbours.labels[place] == match.label
            assert answer.decided.similarities[place] == pytest.approx(match.similarity, abs=1e-5)
            # Cosines of another rounding, or in HNSW a neighbour less.
            assert decision.match_probabilities[place] == pytest.approx(
                match.match_probability, abs=0.02 if "hnsw" in name else 1e-3
            )


def test_a_filter_that_leaves_too_little_is_said(
    retriever: Retriever, queries: list[VectorQuery], items: Items, database: Any, tmp_path: Path
) -> None:
    label = items.labels[0]
    narrow: list[Store] = [
        LanceStore(lance(items, tmp_path).table, where=f"label = '{label}'"),
        PgvectorStore(put_narrow(database, items), "narrow", where=f"label = '{label}'"),
    ]
    n = items.labels.count(label)
    assert retriever.calibration is not None
    assert n < retriever.calibration.n_candidates
    for store in narrow:
        with pytest.raises(InvalidVector, match=f"has {n} neighbours, but the calibration needs"):
            search_and_decide(retriever, store, queries[0])


def test_a_store_that_does_not_fit_is_named(items: Items) -> None:
    direction, index = items.vectors[0], of_faiss(items).index
    for store, given, reason in (
        (FaissStore(index, items.ids[1:], items.labels), direction, "ids and"),
        (of_faiss(items), direction[1:], "has vectors of"),
        (replace(qdrant(items, name="image"), vector=None), direction, r"named \['image'\]"),
        (replace(qdrant(items), vector="image"), direction, r"named \[None\]"),
    ):
        with pytest.raises(InvalidVector, match=reason):
            store.nearest(given, 5)


def put_narrow(connection: Any, items: Items) -> Any:
    connection.execute("CREATE TABLE narrow (id text, label text, embedding vector)")
    with connection.cursor() as cursor:
        rows = zip(items.ids, items.labels, items.vectors.tolist(), strict=True)
        cursor.executemany(
            "INSERT INTO narrow VALUES (%s, %s, %s)",
            [(name, label, str(vector)) for name, label, vector in rows],
        )
    return connection
