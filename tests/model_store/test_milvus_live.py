"""A gallery in Milvus that takes changes: as whole as one in files, by way of its log."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest

from model_store.errors import (
    BundleMismatch,
    GallerySuperseded,
    GalleryUnavailable,
    ItemNotFound,
    StorageBusy,
    StorageFailed,
    StorageFull,
    WriteRefused,
)
from model_store.gallery import (
    Delete,
    NewItem,
    Retry,
    Thumbnail,
    Upsert,
)
from model_store.gallery.milvus.collection import COMPLETE, NOW, MilvusAccess, MilvusDescription
from model_store.gallery.milvus.databases import SqliteDatabase
from model_store.gallery.milvus.gallery import MilvusGallery, MilvusRows
from model_store.gallery.milvus.live import MilvusLive, open_milvus
from model_store.gallery.milvus.log import GRACE_S, MilvusLog, Turn
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.laws.writable_laws import (
    DIM,
    N_ITEMS,
    Reopen,
    WritableLaws,
    ids_of,
    nearest,
    some_upsert,
)
from tests.support.milvus import a_milvus, write_milvus_gallery
from tests.support.postgres import a_postgres, disk_full

pytestmark = pytest.mark.slow


def write(folder: Path, uri: str) -> None:
    folder.mkdir(exist_ok=True)
    embeddings = random_embeddings(N_ITEMS, DIM, seed=0)
    # Another encoder is another collection: each test has one of its own.
    write_milvus_gallery(folder, embeddings, new_items(N_ITEMS), str(folder), uri)


def opened(
    folder: Path, log: str | None = None, admit: Callable[[], None] = lambda: None
) -> MilvusLive:
    gallery = MilvusGallery(folder, MilvusAccess(MilvusDescription.load(folder).uri, log=log))
    live = open_milvus(gallery, folder / "changes", admit)
    OPEN.append(live)
    return live


OPEN: list[MilvusLive] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while OPEN:
        live = OPEN.pop()
        live.snapshot().close()
        live.close()


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a_milvus(tmp_path_factory.mktemp("milvus") / "galleries.db") as uri:
        yield uri


@pytest.fixture
def folder(tmp_path: Path, milvus: str) -> Path:
    write(tmp_path / "bundle", milvus)
    return tmp_path / "bundle"


@pytest.fixture
def live(folder: Path) -> MilvusLive:
    return opened(folder)


def unavailable(*_: object) -> None:
    raise GalleryUnavailable("Milvus does not answer.")


def busy(*_: object, wait: bool = True) -> None:
    raise StorageBusy("Another process is writing.")


class NumbersLaw:
    """A gallery has as many items as are found in it, whatever else the log knows."""

    def test_what_is_not_found_yet_is_not_counted(
        self, live: MilvusLive, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other, ids = reopen(), ids_of(live.snapshot())
        live.commit([some_upsert("a", seed=1), Delete(ids[0]), Delete(ids[1])])
        untold: list[list[Upsert | Delete]] = [
            [Delete(ids[2]), Delete("a"), some_upsert(ids[0], seed=2)],
            [Delete(ids[0]), some_upsert("b", seed=3), Delete(ids[3])],
            [some_upsert("b", seed=4), some_upsert("a", seed=5), Delete("b")],
        ]
        with monkeypatch.context() as outage:
            for writes in untold:
                outage.setattr(MilvusLive, "_tell", told_once())
                with pytest.raises(GalleryUnavailable, match="is kept"):
                    live.commit(writes)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(MilvusLog, "turn", busy)  # so that no reader tells Milvus itself
            for one in (other, reopen()):
                now = one.refresh()
                assert ids_of(now) == sorted({*ids, "a"} - {*ids[:2]})
                assert (now.n_items, now.n_changed) == (N_ITEMS - 1, 3)
                found = now.candidates(random_embeddings(1, DIM, 9).directions, 2 * N_ITEMS)
                assert found.rows.shape == (1, N_ITEMS - 1)
        for one in (other, live, reopen()):
            now = one.refresh()
            assert ids_of(now) == sorted({*ids, "a"} - {*ids[:4]})
            assert (now.n_items, now.n_changed) == (N_ITEMS - 3, 6)


def told_once() -> Callable[..., None]:
    """In place of `MilvusLive._tell`: nothing to tell before the change, and no Milvus after it."""
    answers = iter([lambda: None, unavailable])
    return lambda *_, **__: next(answers)()


class TestWriting(NumbersLaw, WritableLaws):
    """Keeps what every gallery keeps that takes changes."""

    @pytest.fixture
    def reopen(self, folder: Path) -> Reopen:
        return lambda: opened(folder)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with a_postgres() as address:
        yield address


@pytest.fixture
def elsewhere(folder: Path) -> Path:
    """The same bundle on another machine: nothing but Milvus and the database in common."""
    return shutil.copytree(folder, folder.with_name("elsewhere"))


class TestWritingFromSeveralMachines(NumbersLaw, WritableLaws):
    """The same, where the log lies in a database."""

    @pytest.fixture
    def live(self, folder: Path, postgres: str) -> MilvusLive:
        return opened(folder, postgres)

    @pytest.fixture
    def reopen(self, elsewhere: Path, postgres: str) -> Reopen:
        return lambda: opened(elsewhere, postgres)

    def test_what_one_writes_the_other_finds_at_once(
        self, live: MilvusLive, reopen: Reopen
    ) -> None:
        other = reopen()
        for number in range(3):
            live.commit([some_upsert("a", seed=number)])
            assert other.refresh().item("a").metadata == {"seed": number}
            other.commit([Delete("a")])
            assert "a" not in ids_of(live.refresh())

    def test_an_id_that_is_too_long_for_the_log_is_refused(self, live: MilvusLive) -> None:
        characters = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 1_000)))
        with pytest.raises(WriteRefused, match="An id is too long"):
            live.commit([some_upsert("a"), some_upsert(characters)])
        assert "a" not in ids_of(live.refresh())
        live.commit([some_upsert("a"), some_upsert(characters[:430])])
        assert characters[:430] in ids_of(live.refresh())

    def test_a_full_disk_of_the_log_is_said(self, live: MilvusLive, postgres: str) -> None:
        live.commit([some_upsert("a")])
        with (
            psycopg.connect(postgres, autocommit=True) as connection,
            disk_full(connection, "vouch_changes"),
            pytest.raises(StorageFull),
        ):
            live.commit([some_upsert("b")])
        assert "b" not in ids_of(live.refresh())
        live.commit([some_upsert("b")])

    def test_a_database_that_has_hung_up_is_asked_again(
        self, live: MilvusLive, postgres: str
    ) -> None:
        live.commit([some_upsert("a")])
        hang_up(postgres)
        assert live.refresh().item("a").id == "a"
        hang_up(postgres)
        live.commit([some_upsert("b")])
        assert live.refresh().n_items == N_ITEMS + 2

    def test_a_writer_that_lost_its_turn_does_no_harm(
        self, live: MilvusLive, reopen: Reopen, postgres: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live.commit([some_upsert("a", seed=1)])
        other, late = reopen(), []

        def loses_its_turn(self: MilvusGallery, upserts: list[tuple[int, Upsert]]) -> int:
            monkeypatch.undo()
            late.extend(upserts)
            hang_up(postgres)  # and stands still, while another tells Milvus all of it, and more
            other.commit([some_upsert("a", seed=3)])
            return self.put(upserts)

        monkeypatch.setattr(MilvusGallery, "put", loses_its_turn)
        with pytest.raises(GalleryUnavailable):
            live.commit([some_upsert("a", seed=2)])
        assert [upsert.item.metadata for _, upsert in late] == [{"seed": 2}]
        for one in (live, other, reopen()):
            now = one.refresh()
            assert now.item("a").metadata == {"seed": 3}
            assert ids_of(now).count("a") == 1
            assert now.n_items == N_ITEMS + 1


def hang_up(postgres: str) -> None:
    """Let the database close every connection."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def test_nothing_is_found_before_all_of_it_is_there(
    live: MilvusLive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.commit([some_upsert("a", seed=1)])
    other = opened(folder)
    seen: list[tuple[list[str], int]] = []
    put = MilvusGallery.put

    def put_and_look(self: MilvusGallery, upserts: list[tuple[int, Upsert]]) -> int:
        since = put(self, upserts)
        now = other.refresh()
        seen.append((ids_of(now), now.item("a").metadata["seed"]))
        return since

    before = ids_of(live.snapshot())
    monkeypatch.setattr(MilvusGallery, "put", put_and_look)
    live.commit([some_upsert("a", seed=2), some_upsert("b", seed=3), Delete(before[3])])
    assert seen == [(before, 1)]
    after = sorted({*before, "b"} - {before[3]})
    assert ids_of(other.refresh()) == ids_of(live.snapshot()) == after
    assert other.refresh().item("a").metadata == {"seed": 2}


def test_a_refusal_speaks_of_what_everybody_finds(
    live: MilvusLive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.commit([some_upsert("a")])
    other, turn = opened(folder), MilvusLog.turn

    def overtaken(log: MilvusLog, *, wait: bool = True) -> AbstractContextManager[Turn]:
        monkeypatch.setattr(MilvusLog, "turn", turn)
        with monkeypatch.context() as crash:
            crash.setattr(Turn, "told", unavailable)
            with pytest.raises(GalleryUnavailable):
                live.commit([Delete("a")])  # is in the log, and nobody finds it yet
        return turn(log, wait=wait)

    monkeypatch.setattr(MilvusLog, "turn", overtaken)
    with pytest.raises(ItemNotFound):
        other.commit([Delete("a")])
    monkeypatch.setattr(MilvusLog, "turn", busy)  # so that no reader tells Milvus itself
    assert "a" not in ids_of(live.refresh())


def test_a_change_that_is_in_the_log_is_not_said_to_have_failed(
    live: MilvusLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Turn.add

    def add_and_lose_the_turn(turn: Turn, *changes: Any) -> None:
        add(turn, *changes)
        monkeypatch.setattr(MilvusLog, "turn", busy)

    monkeypatch.setattr(Turn, "add", add_and_lose_the_turn)
    with pytest.raises(GalleryUnavailable, match="is kept"):
        live.commit([some_upsert("a")], RETRY)
    with pytest.raises(GalleryUnavailable, match="is kept"):
        live.receipt(RETRY)
    monkeypatch.undo()
    assert live.refresh().item("a").id == "a"


def test_a_change_that_is_kept_is_not_denied_where_the_log_cannot_be_read_afterwards(
    live: MilvusLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as trouble:
        trouble.setattr(MilvusLog, "replaced", broken)
        with pytest.raises(GalleryUnavailable, match="is kept"):
            live.commit([some_upsert("a")], RETRY)
        with pytest.raises(GalleryUnavailable, match="is kept"):
            live.receipt(RETRY)
    assert live.refresh().item("a").id == "a"


def broken(*_: object) -> None:
    raise StorageFailed("The disk does not give it back. Nothing was changed.")


def test_what_milvus_was_told_late_leaves_time_to_who_is_reading(
    live: MilvusLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.commit([some_upsert("a", seed=1)])
    reading = live.snapshot()
    with monkeypatch.context() as outage:
        outage.setattr(MilvusGallery, "put", unavailable)
        with pytest.raises(GalleryUnavailable):
            live.commit([some_upsert("a", seed=2)])
    wall, clock = time.time, time.monotonic
    monkeypatch.setattr(SqliteDatabase, "now", lambda *_: wall() + 2 * GRACE_S)
    later = SimpleNamespace(monotonic=lambda: clock() + 2 * GRACE_S)
    monkeypatch.setattr("model_store.gallery.milvus.live.time", later)
    assert live.refresh().item("a").metadata == {"seed": 2}  # and sweeps
    assert reading.item("a").metadata == {"seed": 1}


def test_a_state_that_was_answered_with_stays(live: MilvusLive) -> None:
    live.commit([some_upsert("a", seed=1)])
    then, ids = live.snapshot(), ids_of(live.snapshot())
    live.commit([some_upsert("a", seed=2), Delete(ids[5])])
    for earlier in (then, live.snapshot(1)):
        assert (ids_of(earlier), earlier.item("a").metadata) == (ids, {"seed": 1})


def test_what_was_replaced_is_taken_out_of_milvus_and_does_not_come_back(
    live: MilvusLive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.commit([some_upsert("a", seed=1)])
    live.commit([some_upsert("a", seed=2)])
    gallery = live.snapshot()
    rows = MilvusRows(gallery.collection, N_ITEMS)
    assert {one["row"] for one in rows.of_id("a", NOW, [])} == {N_ITEMS, N_ITEMS + 1}
    monkeypatch.setattr("model_store.gallery.milvus.live.GRACE_S", 0.0)
    other = opened(folder)
    other.refresh()  # for a reader that nobody writes beside
    assert [one["row"] for one in rows.of_id("a", NOW, [])] == [N_ITEMS + 1]
    gallery.put([(N_ITEMS, some_upsert("a", seed=1))])  # a request that was long on its way
    for reader in (live, opened(folder)):
        assert reader.refresh().item("a").metadata == {"seed": 2}
        assert ids_of(reader.snapshot()).count("a") == 1
    monkeypatch.setattr("model_store.gallery.milvus.live.REMEMBERED_S", 0.0)
    opened(folder).refresh()
    assert [one["row"] for one in rows.of_id("a", NOW, [])] == [N_ITEMS + 1]
    assert ids_of(live.refresh()).count("a") == 1


def test_many_that_were_replaced_hide_nothing(live: MilvusLive) -> None:
    for _ in range(3):
        live.commit([some_upsert(f"n{i}", seed=100 + i) for i in range(30)])
    now = live.snapshot()
    rows = now.candidates(random_embeddings(1, DIM, 100).directions, N_ITEMS + 30).rows[0]
    assert len({item.id for item in now.items(rows)}) == N_ITEMS + 30


def test_another_log_is_refused(live: MilvusLive, elsewhere: Path, folder: Path) -> None:
    other = opened(elsewhere)
    live.commit([some_upsert("a")])
    with pytest.raises(BundleMismatch, match="another log"):
        other.commit([some_upsert("b")])
    with pytest.raises(BundleMismatch, match="VOUCH_MILVUS_LOG"):
        opened(elsewhere)
    for lost in (folder / "changes").iterdir():
        lost.unlink()
    with pytest.raises(BundleMismatch, match="If the log is lost"):
        opened(folder)


def test_a_collection_that_names_no_log_does_not_lose_the_one_there_is(
    live: MilvusLive, folder: Path
) -> None:
    live.commit([some_upsert("a")])
    collection = live.snapshot().collection
    for mark in collection.marks() - {COMPLETE}:
        collection.unmark(mark)
    with pytest.raises(BundleMismatch, match="another log"):
        opened(folder)


@pytest.mark.parametrize("lost", ["log", "collection"])
def test_a_gallery_is_indexed_again_after_a_loss(live: MilvusLive, folder: Path, lost: str) -> None:
    live.commit([some_upsert("a")])
    collection = live.snapshot().collection
    if lost == "log":
        live.close()
        shutil.rmtree(folder / "changes")
    else:
        collection.drop()
    write(folder, collection.uri)
    again = opened(folder)
    assert again.snapshot().n_items == N_ITEMS
    again.commit([some_upsert("b")])
    assert {"a", "b"} & set(ids_of(again.snapshot())) == {"b"}


def test_an_item_that_milvus_does_not_take_is_refused_and_not_in_the_log(
    live: MilvusLive, folder: Path
) -> None:
    large = NewItem("large", None, {}, Thumbnail(bytes(60_000), "image/png"))
    with pytest.raises(WriteRefused, match="Milvus takes at most"):
        live.commit([some_upsert("a"), Upsert(large, some_upsert("x").vector)])
    assert live.snapshot().version == 0
    live.commit([some_upsert("b")])
    assert {"a", "large"}.isdisjoint(ids_of(live.snapshot()))


def test_one_that_is_not_current_any_more_takes_no_changes(folder: Path) -> None:
    def superseded() -> None:
        raise GallerySuperseded("another is current")

    live = opened(folder, admit=superseded)
    with pytest.raises(GallerySuperseded):
        live.commit([some_upsert("lost")])
    assert "lost" not in ids_of(live.refresh())


RETRY = Retry("key", "request")


def crash_at(folder: Path, uri: str, name: str) -> None:
    """Make a gallery, write to it, and end as by a power cut at a call."""
    write(folder, uri)
    live = opened(folder)
    live.commit([some_upsert("old", seed=1)])
    patch = pytest.MonkeyPatch()
    patch.setattr(f"model_store.gallery.{name}", lambda *_: os._exit(7))
    live.commit([some_upsert("new", seed=3), some_upsert("more", seed=4), Delete("old")], RETRY)


@pytest.mark.parametrize(
    "name",
    [
        "milvus.gallery.MilvusGallery.put",  # the log has it, Milvus has nothing of it
        "milvus.log.Turn.told",  # Milvus has it, the log does not know
    ],
)
@pytest.mark.process
def test_what_a_crash_kept_from_milvus_is_told_it_afterwards(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "bundle"
    with a_milvus(tmp_path / "crash.db") as uri:
        run_and_crash(crash_at, folder, uri, name)
        live = opened(folder)
        now = live.snapshot()
        assert now.n_items == N_ITEMS + 2
        assert (nearest(now, 3), nearest(now, 4)) == ("new", "more")
        assert "old" not in ids_of(now)
        before = live.receipt(RETRY)
        assert before is not None
        assert live.commit([some_upsert("other")], RETRY) == before


def run_and_crash(target: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 7
