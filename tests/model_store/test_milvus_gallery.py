"""The gallery on Milvus, served by milvus-lite through the same client."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import (
    BundleMismatch,
    ConfigError,
    DatasetError,
    GalleryUnavailable,
    ItemNotFound,
)
from model_store.gallery import (
    Delete,
    FaissGallery,
    IndexSettings,
    MaskedRows,
    NewItem,
    Thumbnail,
    parse_filter,
    write_faiss_gallery,
)
from model_store.gallery.index.build import FETCHED
from model_store.gallery.index.plan import IndexKind
from model_store.gallery.milvus import gallery as milvus_gallery
from model_store.gallery.milvus.collection import (
    MILVUS_FILE,
    Collection,
    MilvusAccess,
    MilvusDescription,
)
from model_store.gallery.milvus.entities import ENTITY_FIELDS, write_entity
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.live import MilvusLive, open_milvus
from tests.end_to_end.processes import free_port
from tests.laws.gallery_laws import BuildGallery, GalleryLaws, new_items, random_embeddings
from tests.laws.writable_laws import upserts
from tests.support.milvus import a_milvus, write_milvus_gallery

pytestmark = pytest.mark.slow

PICTURE = Thumbnail(b"", "image/png")


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a_milvus(tmp_path_factory.mktemp("milvus") / "galleries.db") as uri:
        yield uri


@pytest.fixture
def build(milvus: str, tmp_path: Path) -> Iterator[BuildGallery]:
    opened: list[MilvusGallery] = []

    def make(embeddings: Embeddings, items: Sequence[NewItem]) -> MilvusGallery:
        opened.append(written(tmp_path, milvus, embeddings, items))
        return opened[-1]

    yield make
    for gallery in opened:
        gallery.close()


def written(
    directory: Path,
    uri: str,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    kind: IndexKind = "flat",
) -> MilvusGallery:
    settings = IndexSettings(kind, min_recall=0.9)
    write_milvus_gallery(directory, embeddings, items, "the-encoder", uri, settings)
    return MilvusGallery(directory, MilvusAccess(uri))


def taking_changes(gallery: MilvusGallery, folder: Path) -> MilvusLive:
    return open_milvus(gallery, folder / "changes", lambda: None)


def ids_of(gallery: MilvusGallery, rows: NDArray[np.int64]) -> list[str]:
    return [item.id for item in gallery.items(rows)]


class TestMilvusGallery(GalleryLaws):
    """Keeps what every gallery keeps."""

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
        assert (gallery.is_local, expected.is_local) == (False, True)


@pytest.mark.parametrize("kind", ["hnsw", "ivf_sq8"])
def test_an_approximate_index_finds_as_many_as_there_are(
    milvus: str, tmp_path: Path, kind: IndexKind
) -> None:
    gallery = written(tmp_path, milvus, random_embeddings(250, 8, seed=1), new_items(250), kind)
    query = gallery.directions(np.array([7]))
    assert gallery.candidates(query, 240).rows.shape == (1, 240)
    few = np.zeros(250, dtype=bool)
    few[::9] = True
    exactly = np.argsort(-(gallery.directions(np.flatnonzero(few)) @ query[0]))[:20]
    rows = gallery.candidates(query, 20, MaskedRows(few)).rows[0]
    assert set(rows) == set(np.flatnonzero(few)[exactly])
    assert MilvusDescription.load(tmp_path).index["recall_at_10"] >= 0.9
    gallery.close()


def test_a_mask_that_is_made_of_others_is_kept_to(milvus: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, milvus, random_embeddings(60, 4, seed=2), new_items(60))
    rest = ~gallery.matching(parse_filter({"label": "b"})).mask()
    query = gallery.directions(np.array([0]))
    rows = gallery.candidates(query, 60, MaskedRows(rest)).rows[0]
    assert set(rows) == set(np.flatnonzero(rest))
    gallery.close()


class TestRequests:
    """One search is one request where its items are new, and where they are all remembered."""

    @pytest.fixture
    def gallery(self, milvus: str, tmp_path: Path) -> Iterator[MilvusGallery]:
        with closing(
            written(tmp_path, milvus, random_embeddings(40, 6, seed=3), new_items(40))
        ) as opened:
            assert opened.n_items == 40  # counted once
            yield opened

    @pytest.fixture
    def asked(self, gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
        """Fields that Milvus is asked for, request by request."""
        fields: list[Sequence[str]] = []
        read = gallery.collection.read

        def counted(call: str, since: int, **options: Any) -> Any:
            fields.append(options["output_fields"])
            return read(call, since, **options)

        monkeypatch.setattr(gallery.collection, "read", counted)
        return fields

    def test_what_is_found_comes_with_the_rows(
        self, gallery: MilvusGallery, asked: list[Sequence[str]]
    ) -> None:
        query = gallery.directions(np.arange(1))
        del asked[:]
        found = gallery.candidates(query, 10).rows[0]
        assert gallery.items(found)[0].id == gallery.items(np.array([0]))[0].id
        assert asked == [["row", *ENTITY_FIELDS]]

    def test_what_is_remembered_is_not_asked_for_again(
        self, gallery: MilvusGallery, asked: list[Sequence[str]]
    ) -> None:
        query = gallery.directions(np.arange(1))
        first = gallery.candidates(query, 10)
        for _ in range(20):
            found = gallery.candidates(query, 10)
        del asked[:]
        again = gallery.candidates(query, 10)
        assert asked == [["row"]]
        for one in (found, again):
            np.testing.assert_array_equal(one.rows, first.rows)
            np.testing.assert_array_equal(one.similarities, first.similarities)

    def test_an_answer_of_very_many_is_not_read_at_once(
        self, gallery: MilvusGallery, asked: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queries = gallery.directions(np.arange(4))
        by_itself = gallery.candidates(queries[3:], 10)
        monkeypatch.setattr(milvus_gallery, "READ_AT_ONCE", 3 * (FETCHED + milvus_gallery.MARGIN))
        del asked[:]
        found = gallery.candidates(queries, 10)
        assert asked[0] == ["row"]
        np.testing.assert_array_equal(found.rows[3:], by_itself.rows)


def test_a_gallery_is_written_anew_only_after_a_change(milvus: str, tmp_path: Path) -> None:
    embeddings, items = random_embeddings(9, 4, seed=3), new_items(9)
    collections = []
    for _ in range(2):
        gallery = written(tmp_path, milvus, embeddings, items)
        collections.append((tmp_path / MILVUS_FILE).read_bytes())
    live = taking_changes(gallery, tmp_path)
    live.commit([Delete("item-003")])
    for _ in range(2):
        again = written(tmp_path, milvus, embeddings, items)
        collections.append((tmp_path / MILVUS_FILE).read_bytes())
        assert (again.n_items, again.n_changed) == (9, 0)
    assert collections[0] == collections[1] != collections[2] == collections[3]
    assert live.refresh().n_items == 8


def test_galleries_of_two_owners_never_share_a_collection(milvus: str, tmp_path: Path) -> None:
    embeddings, items = random_embeddings(9, 4, seed=3), new_items(9)
    lives = {}
    for owner in ("stage", "prod"):
        folder = tmp_path / owner
        folder.mkdir()
        write_milvus_gallery(folder, embeddings, items, "the-encoder", milvus, owner=owner)
        lives[owner] = taking_changes(MilvusGallery(folder, MilvusAccess(milvus)), folder)
    lives["stage"].commit([Delete("item-003")])
    lives["prod"].commit([Delete("item-004")])
    assert lives["stage"].snapshot().item("item-004").id == "item-004"
    assert lives["prod"].snapshot().item("item-003").id == "item-003"


def test_what_was_not_written_to_its_end_is_written_anew(milvus: str, tmp_path: Path) -> None:
    embeddings, items = random_embeddings(9, 4, seed=4), new_items(9)
    written(tmp_path, milvus, embeddings, items).close()
    name = MilvusDescription.load(tmp_path).collection
    collection = Collection(name, MilvusAccess(milvus))
    collection.drop()
    collection.create(4, "the-encoder")
    with pytest.raises(BundleMismatch, match="is incomplete"):
        MilvusGallery(tmp_path, MilvusAccess(milvus))
    gallery = written(tmp_path, milvus, embeddings, items)
    assert gallery.n_items == 9
    collection.close()
    gallery.close()


def test_items_are_put_replaced_and_deleted(milvus: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, milvus, random_embeddings(20, 4, seed=5), new_items(20))
    live = taking_changes(gallery, tmp_path)
    come = random_embeddings(3, 4, seed=6)
    replaced = gallery.row("item-004")
    gallery.candidates(gallery.directions(np.array([replaced])), 5)
    names = ["item-004", "new", "newer"]
    items = [NewItem(name, "z", {"is": name}, PICTURE) for name in names]
    live.commit(upserts(come, items))
    gallery = live.snapshot()
    assert (gallery.n_items, gallery.n_rows, gallery.n_changed) == (22, 23, 3)
    for name, direction in zip(names, come.directions, strict=True):
        row = gallery.candidates(direction[None], 1).rows[0]
        [found] = gallery.items(row)
        assert (found.id, found.label, found.metadata) == (name, "z", {"is": name})
        code = gallery.label_codes(row)[0]
        assert gallery.labels[code] == "z"
        np.testing.assert_array_equal(gallery.directions(row)[0], direction)
    assert gallery.labels[:3] == ("a", "b", "c")
    live.commit([Delete("item-004"), Delete("new")])
    gallery = live.snapshot()
    assert (gallery.n_items, gallery.n_rows) == (20, 25)
    everything = gallery.candidates(come.directions[:1], 30).rows[0]
    assert {"item-004", "new"}.isdisjoint(ids_of(gallery, everything))
    assert len(everything) == 20
    assert set(gallery.page(None, 30)) == set(everything)
    with pytest.raises(ItemNotFound, match="no longer"):
        gallery.directions(np.array([replaced]))
    with pytest.raises(ItemNotFound, match="'new'"):
        live.commit([Delete("newer"), Delete("new")])
    assert live.snapshot().item("newer").id == "newer"


def test_pages_hold_every_item_once(milvus: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, milvus, random_embeddings(20, 4, seed=7), new_items(20))
    live = taking_changes(gallery, tmp_path)
    come = upserts(random_embeddings(1, 4, seed=8), [NewItem("a", None, {}, PICTURE)])
    live.commit([Delete("item-005"), Delete("item-006"), *come])
    gallery = live.snapshot()
    after, seen = None, []
    while len(page := gallery.page(after, 7)):
        seen += ids_of(gallery, page)
        after = int(page[-1])
    assert seen == [f"item-{n:03d}" for n in range(20) if n not in {5, 6}] + ["a"]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (NewItem("x" * 70_000, None, {}, PICTURE), "70,000 bytes"),
        (NewItem("x", None, {"a": 2**70}, PICTURE), "64 bits"),
        (NewItem("x", None, {"a": "\ud800"}, PICTURE), "surrogate"),
        (NewItem("x", None, {str(n): n for n in range(2_000)}, PICTURE), "values"),
        (NewItem("x", None, {}, Thumbnail(bytes(60_000), "image/png")), "80,000 bytes"),
    ],
)
def test_an_item_that_milvus_does_not_take_is_named(item: NewItem, why: str) -> None:
    vector = np.ones(3, dtype=np.float32)
    with pytest.raises(DatasetError, match=why):
        write_entity(0, item, vector, vector)


def test_a_gallery_of_another_encoder_is_refused(milvus: str, tmp_path: Path) -> None:
    written(tmp_path, milvus, random_embeddings(3, 4, seed=9), new_items(3)).close()
    described = MilvusDescription.load(tmp_path)
    for changed, why in [
        (replace(described, encoder="another"), "was made with encoder the-encoder"),
        (replace(described, dim=5), "has 4 dimensions"),
        (replace(described, collection="vouch_gone"), "no collection 'vouch_gone'"),
    ]:
        changed.save(tmp_path)
        with pytest.raises(BundleMismatch, match=why):
            MilvusGallery(tmp_path, MilvusAccess(milvus))


def test_a_collection_that_is_dropped_meanwhile_is_missed(milvus: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, milvus, random_embeddings(5, 4, seed=10), new_items(5))
    collection = Collection(gallery.described.collection, MilvusAccess(milvus))
    collection.drop()
    with pytest.raises(BundleMismatch, match="no collection"):
        gallery.candidates(np.eye(4, dtype=np.float32)[:1], 3)
    collection.close()
    gallery.close()


def test_a_collection_that_is_not_loaded_any_more_is_loaded(milvus: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, milvus, random_embeddings(5, 4, seed=15), new_items(5))
    collection = Collection(gallery.described.collection, MilvusAccess(milvus))
    collection.ask("release_collection")
    assert gallery.candidates(np.eye(4, dtype=np.float32)[:1], 3).rows.shape == (1, 3)
    collection.close()
    gallery.close()


def test_nobody_listening_is_said_at_once(tmp_path: Path) -> None:
    MilvusDescription(
        uri="http://nobody",
        collection="c",
        encoder="e",
        n_items=1,
        dim=4,
        labels=[],
        index={"type": "FLAT", "parameters": {}},
    ).save(tmp_path)
    nobody = MilvusAccess(f"http://127.0.0.1:{free_port()}", timeout_s=1)
    with pytest.raises(GalleryUnavailable, match="does not answer"):
        MilvusGallery(tmp_path, nobody)


def test_one_that_accepts_and_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    MilvusDescription(
        uri="http://mute",
        collection="c",
        encoder="e",
        n_items=1,
        dim=4,
        labels=[],
        index={"type": "FLAT", "parameters": {}},
    ).save(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        access = MilvusAccess(f"http://127.0.0.1:{mute.getsockname()[1]}", timeout_s=1)
        started = time.monotonic()
        with pytest.raises(GalleryUnavailable):
            MilvusGallery(tmp_path, access)
        assert time.monotonic() - started < 5


def test_a_secret_does_not_get_into_a_bundle(tmp_path: Path) -> None:
    embeddings = random_embeddings(3, 4, seed=0)
    with pytest.raises(ConfigError, match="VOUCH_MILVUS_TOKEN"):
        write_milvus_gallery(tmp_path, embeddings, new_items(3), "e", "http://root:secret@milvus")
    assert "secret" not in repr(MilvusAccess(token="secret"))
    assert not list(tmp_path.iterdir())


def test_an_index_that_milvus_has_not_is_refused(tmp_path: Path) -> None:
    embeddings = random_embeddings(3, 4, seed=0)
    with pytest.raises(ConfigError, match="ivf_pq"):
        write_milvus_gallery(
            tmp_path, embeddings, new_items(3), "e", "http://m", IndexSettings("ivf_pq")
        )
