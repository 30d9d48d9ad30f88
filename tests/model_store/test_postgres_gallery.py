"""A gallery in PostgreSQL: a real server with pgvector keeps what every gallery keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    Delete,
    FaissGallery,
    IndexSettings,
    MaskedRows,
    NewItem,
    PostgresAccess,
    PostgresGallery,
    PostgresLive,
    Thumbnail,
    open_postgres,
    parse_filter,
    write_faiss_gallery,
    write_postgres_gallery,
)
from model_store.gallery.index.plan import IndexKind
from tests.laws.gallery_laws import BuildGallery, GalleryLaws, new_items, random_embeddings
from tests.laws.writable_laws import DIM, N_ITEMS, Reopen, WritableLaws
from tests.support.postgres import a_postgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with a_postgres() as uri:
        yield uri


def written(
    directory: Path,
    uri: str,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    kind: IndexKind = "flat",
    encoder: str = "the-encoder",
) -> PostgresGallery:
    directory.mkdir(exist_ok=True)
    settings = IndexSettings(kind, min_recall=0.9)
    access = PostgresAccess(uri)
    write_postgres_gallery(
        directory, embeddings, items, encoder, "postgresql://db.example/vouch", settings, access
    )
    return PostgresGallery(directory, access)


@pytest.fixture
def build(postgres: str, tmp_path: Path) -> Iterator[BuildGallery]:
    opened: list[PostgresGallery] = []

    def make(embeddings: Embeddings, items: Sequence[NewItem]) -> PostgresGallery:
        opened.append(written(tmp_path / str(len(opened)), postgres, embeddings, items))
        return opened[-1]

    yield make
    for gallery in opened:
        gallery.close()


class TestPostgresGallery(GalleryLaws):
    def test_it_is_what_the_gallery_in_files_is(
        self, build: BuildGallery, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        embeddings, items = random_embeddings(120, 6, seed=11), new_items(120)
        files = tmp_path_factory.mktemp("files")
        write_faiss_gallery(files, embeddings, items, "the-encoder")
        expected, gallery = FaissGallery(files), build(embeddings, items)
        query = random_embeddings(3, 6, seed=12).directions
        found, wanted = gallery.candidates(query, 40), expected.candidates(query, 40)
        np.testing.assert_array_equal(found.rows, wanted.rows)
        np.testing.assert_array_equal(found.similarities, wanted.similarities)
        rows = found.rows[:2]
        np.testing.assert_array_equal(gallery.directions(rows), expected.directions(rows))
        np.testing.assert_array_equal(gallery.variances(rows), expected.variances(rows))
        np.testing.assert_array_equal(gallery.total_variances(rows), expected.total_variances(rows))
        np.testing.assert_array_equal(gallery.label_codes(rows), expected.label_codes(rows))
        assert gallery.items(rows[0]) == expected.items(rows[0])
        assert gallery.labels == tuple(expected.labels)
        assert gallery.held_labels == tuple(expected.held_labels)
        assert gallery.facets(5) == expected.facets(5)
        assert (gallery.is_local, expected.is_local) == (False, True)


def test_facets_count_values_and_lists_of_current_items(postgres: str, tmp_path: Path) -> None:
    """As the gallery in files counts them."""
    metadata: list[dict[str, object]] = [
        {"tags": ["red", "new"], "year": 1999, "brand": {"name": "Ono"}, "sold": True},
        {"tags": ["red", "red"], "year": 2004.5, "brand": {"name": "Ono"}, "sold": False},
        {"tags": [], "year": "unknown", "sold": None},
        {"tags": "red", "year": 1999, "brand": "Ono", "sold": True},
    ]
    items = [
        NewItem(f"i{place}", None, of_item, Thumbnail(b"", "image/png"))
        for place, of_item in enumerate(metadata * 2)
    ]
    embeddings = random_embeddings(8, 4, seed=3)
    gallery = written(tmp_path / "postgres", postgres, embeddings, items)
    (tmp_path / "files").mkdir()
    write_faiss_gallery(tmp_path / "files", embeddings, items, "the-encoder")
    expected = FaissGallery(tmp_path / "files")
    for most in (1, 2, 9):
        found = {facet.field: facet for facet in gallery.facets(most)}
        assert found == {facet.field: facet for facet in expected.facets(most)}
    live = open_postgres(gallery, lambda: None)
    live.commit([Delete("i0"), Delete("i1")])
    found = {facet.field: facet for facet in live.snapshot().facets(9)}
    assert (found["year"].n_items, found["tags"].n_items) == (6, 4)
    live.close()


def test_an_approximate_index_finds_as_many_as_there_are(postgres: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, postgres, random_embeddings(250, 8, seed=1), new_items(250), "hnsw")
    query = gallery.directions(np.array([7]))
    assert gallery.candidates(query, 240).rows.shape == (1, 240)
    few = np.zeros(250, dtype=bool)
    few[::9] = True
    exactly = np.argsort(-(gallery.directions(np.flatnonzero(few)) @ query[0]))[:20]
    rows = gallery.candidates(query, 20, MaskedRows(few)).rows[0]
    assert set(rows) == set(np.flatnonzero(few)[exactly])
    assert gallery.described.index["recall_at_10"] >= 0.9
    passing = gallery.matching(parse_filter({"label": "b", "place": {"lt": 30}}))
    assert gallery.candidates(query, 240, passing).rows.shape == (1, passing.at_most)
    gallery.close()


class TestPostgresLive(WritableLaws):
    @pytest.fixture
    def folder(self, tmp_path: Path, postgres: str) -> Path:
        embeddings, items = random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS)
        written(tmp_path / "bundle", postgres, embeddings, items, encoder=str(tmp_path)).close()
        return tmp_path / "bundle"

    @pytest.fixture
    def reopen(self, folder: Path, postgres: str) -> Iterator[Reopen]:
        opened: list[PostgresLive] = []

        def again() -> PostgresLive:
            gallery = PostgresGallery(folder, PostgresAccess(postgres))
            opened.append(open_postgres(gallery, lambda: None))
            return opened[-1]

        yield again
        for live in opened:
            live.close()

    @pytest.fixture
    def live(self, reopen: Reopen) -> PostgresLive:
        live = reopen()
        assert isinstance(live, PostgresLive)
        return live
