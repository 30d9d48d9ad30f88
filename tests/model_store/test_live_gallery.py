"""A gallery that changes: what it keeps, whoever writes to it, and what its snapshots promise."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import (
    BundleMismatch,
    ChangeUnconfirmed,
    GallerySuperseded,
    ItemNotFound,
    LogDamaged,
    StorageBusy,
    StorageFailed,
    StorageFull,
)
from model_store.gallery import (
    ChangesFile,
    Delete,
    Edit,
    FaissGallery,
    GallerySnapshot,
    IndexSettings,
    LiveGallery,
    NewItem,
    Retry,
    Thumbnail,
    Upsert,
    Vector,
    Write,
    parse_filter,
    write_faiss_gallery,
)
from model_store.gallery.live import rows as log_rows
from model_store.gallery.live.log import (
    HighWater,
    Transaction,
    _now,
    remove_unfinished,
    require_reached,
)
from model_store.gallery.protocol import plan_writes
from model_store.sqlite import connect
from tests.laws.gallery_laws import BuildGallery, GalleryLaws, new_items, random_embeddings
from tests.laws.writable_laws import DIM, Reopen, WritableLaws, ids_of, some_upsert, upserts
from tests.support.killing import killed_at


def written(folder: Path, embeddings: Embeddings, items: Sequence[NewItem]) -> FaissGallery:
    folder.mkdir(exist_ok=True)
    write_faiss_gallery(folder, embeddings, items, "the-encoder")
    return FaissGallery(folder)


def opened(base: FaissGallery, path: Path) -> LiveGallery:
    return LiveGallery(base, ChangesFile(path, "the-bundle", "the-encoder"))


def part(embeddings: Embeddings, rows: slice) -> Embeddings:
    return Embeddings(embeddings.mean[rows], embeddings.variance[rows], embeddings.features[rows])


@pytest.fixture
def base(tmp_path: Path) -> FaissGallery:
    return written(tmp_path / "base", random_embeddings(10, DIM, seed=0), new_items(10))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "changes" / "the-bundle.sqlite"


@pytest.fixture
def live(base: FaissGallery, path: Path) -> LiveGallery:
    return opened(base, path)


def unusable(item_id: str, number: float) -> Upsert:
    """What earlier releases logged if the encoder gave no usable embedding."""
    upsert = some_upsert(item_id, "no embedding")
    return replace(
        upsert, vector=Vector(np.full(DIM, number, np.float32), np.ones(DIM, np.float32))
    )


class TestASnapshotOfWhatWasAdded(GalleryLaws):
    """Half of the items came with the base, half after it; among the first were others before."""

    @pytest.fixture
    def build(self, tmp_path: Path) -> BuildGallery:
        def make(embeddings: Embeddings, items: Sequence[NewItem]) -> GallerySnapshot:
            half = len(items) // 2
            base = written(tmp_path / "base", part(embeddings, slice(half)), items[:half])
            live = opened(base, tmp_path / "changes" / "log.sqlite")
            live.commit(upserts(part(embeddings, slice(half, None)), items[half:]))
            return live.snapshot()

        return make


class TestASnapshot:
    def test_an_upsert_takes_the_place_of_the_item(
        self, live: LiveGallery, base: FaissGallery
    ) -> None:
        old = base.items(np.array([3]))[0]
        live.commit([some_upsert(old.id, "new")])
        now = live.snapshot()
        assert now.n_items == 10
        assert now.item(old.id).label == "new"
        assert now.thumbnail(old.id).data == old.id.encode()
        everything = now.candidates(base.directions(np.array([3])), 20).rows[0]
        assert 3 not in everything
        ids = [found.id for found in now.items(everything)]
        assert sorted(ids) == sorted(set(ids))
        assert len(ids) == 10

    def test_without_a_change_filters_are_those_of_the_base(
        self, live: LiveGallery, base: FaissGallery
    ) -> None:
        labels = parse_filter({"label": {"ne": "new"}})
        assert live.snapshot().matching(labels) is base.matching(labels)
        live.commit([some_upsert(base.items(np.array([3]))[0].id, "new")])
        mask = live.snapshot().matching(labels).mask()
        assert np.flatnonzero(~mask).tolist() == [3, 10]

    def test_an_item_may_be_replaced_and_removed_again_and_again(self, live: LiveGallery) -> None:
        for seed in range(5):
            live.commit([some_upsert("again", seed=seed)])
            now = live.snapshot()
            assert now.item("again").metadata == {"seed": seed}
            assert now.n_items == 11
            live.commit([Delete("again")])
            with pytest.raises(ItemNotFound, match="again"):
                live.snapshot().row("again")
        assert live.snapshot().n_items == 10
        assert live.snapshot().n_rows == 15

    @pytest.mark.parametrize("number", [np.nan, np.inf, 0.0])
    def test_a_logged_item_without_an_embedding_is_left_out_and_named(
        self,
        base: FaissGallery,
        path: Path,
        number: float,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        old = base.items(np.array([3]))[0]
        writer = opened(base, path)
        writer.commit([some_upsert("before", "seen"), some_upsert("again", seed=1)])
        with writer.log.transaction() as turn:
            turn.add([unusable(old.id, number), unusable("bad", number), unusable("again", number)])
        writer.commit([some_upsert("after", "seen", seed=2)])
        for live in (writer, opened(base, path)):
            now = live.snapshot()
            assert ids_of(now) == sorted([*ids_of(base), "after", "again", "before"])
            assert (now.n_items, now.n_changed, now.version) == (13, 3, 6)
            assert now.item(old.id) == old
            assert now.item("again").metadata == {"seed": 1}
            with pytest.raises(ItemNotFound):
                now.row("bad")
            seen = now.matching(parse_filter({"label": "seen"}))
            assert [one.id for one in now.items(seen.rows())] == ["before", "after"]
            assert "no embedding" not in now.held_labels
            assert sum(len(items) for _, items in now.parts()) == 13
        assert "the item 'bad' is not finite, or zero" in caplog.text
        assert "change 4 " in caplog.text

    def test_it_never_changes(self, live: LiveGallery, base: FaissGallery) -> None:
        live.commit([some_upsert("a"), some_upsert("b", seed=8)])
        before = live.snapshot()
        query = before.directions(np.array([10, 2]))
        found, a = before.candidates(query, 5), before.item("a")
        first = base.items(np.array([0]))[0].id
        for seed in range(40):  # past what is kept room for
            live.commit([some_upsert("a", seed=seed), some_upsert(f"c{seed}", seed=seed)])
        live.commit([Delete("b"), Delete(first)])
        assert np.array_equal(before.candidates(query, 5).rows, found.rows)
        assert before.item("a") == a
        assert (before.n_items, before.n_rows) == (12, 12)
        assert before.row(first) == 0
        assert "c0" not in [one.id for one in before.items(before.page(None, 100))]

    def test_an_earlier_one_can_be_had_again(self, live: LiveGallery) -> None:
        live.commit([some_upsert("a", "x")])
        then = live.snapshot()
        live.commit([Delete("a"), some_upsert("b")])
        again = live.snapshot(then.version)
        assert again.item("a") == then.item("a")
        query = then.directions(np.array([10]))
        assert np.array_equal(again.candidates(query, 99).rows, then.candidates(query, 99).rows)
        with pytest.raises(ItemNotFound):
            again.row("b")

    def test_without_a_change_it_is_not_made_again(self, live: LiveGallery) -> None:
        before = live.snapshot()
        assert live.refresh() is before
        assert live.snapshot(before.version) is before

    def test_features_are_those_of_the_write_of_the_item(
        self, live: LiveGallery, base: FaissGallery
    ) -> None:
        features, last = np.arange(3, dtype=np.float32), base.items(np.array([9]))[0].id
        for item_id in ("a", "b"):
            put = some_upsert(item_id)
            live.commit([replace(put, vector=replace(put.vector, features=features))])
        now = live.snapshot()
        assert now.upsert(last).vector.features is None
        for item_id in ("a", "b"):
            np.testing.assert_array_equal(now.upsert(item_id).vector.features, features)

    def test_labels_of_the_base_keep_their_codes(self, live: LiveGallery) -> None:
        live.commit([some_upsert("a", "aaa"), some_upsert("b", "b"), some_upsert("c", "0")])
        live.commit([some_upsert("d"), some_upsert("e", "gone"), Delete("e")])
        now = live.snapshot()
        assert now.labels == ("a", "b", "c", "aaa", "0", "gone")
        assert now.held_labels == ("a", "b", "c", "aaa", "0")
        assert now.label_codes(np.array([10, 11, 12])).tolist() == [3, 1, 4]

    def test_pages_go_by_id_whatever_is_written_between_them(self, live: LiveGallery) -> None:
        known = {one.id for one in live.snapshot().items(np.arange(10))}
        live.commit([some_upsert("item-0035"), some_upsert("zz"), some_upsert("a")])
        seen, after = list[str](), None
        while (rows := live.snapshot().page(after, 3)).size:
            seen += [one.id for one in live.snapshot().items(rows)]
            after = int(rows[-1])
            if len(seen) == 6:  # the last one seen goes, another comes before, one behind
                live.commit([Delete(seen[-1]), some_upsert("b"), some_upsert("zzz")])
        assert seen == sorted(known | {"item-0035", "zz", "a", "zzz"})

    def test_a_page_looks_at_no_more_rows_than_it_takes(
        self, base: FaissGallery, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of ten million rows each page would else look at all that come after it."""
        monkeypatch.setattr(base, "n_rows", 10**7)
        monkeypatch.setattr(base, "n_items", 10**7)
        live = opened(base, path)
        first = [one.id for one in base.items(np.array([0, 1, 3, 4]))]
        live.commit([Delete(item_id) for item_id in first])
        now = live.snapshot()
        tracemalloc.start()
        try:
            assert now.page(None, 3).tolist() == [2, 5, 6]
            assert now.page(6, 1_000).tolist() == list(range(7, 1_007))
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("limit", [1, 2, 8, 9, 10])
    def test_page_beside_a_deleted_item_is_full_while_items_are_left(
        self, live: LiveGallery, base: FaissGallery, limit: int
    ) -> None:
        live.commit([Delete(base.items(np.array([0]))[0].id)])
        page = live.snapshot().page(None, limit)
        assert page.tolist() == list(range(1, 10))[:limit]

    @pytest.mark.parametrize("first", [0, 10])
    def test_renamed_labels_are_those_that_no_item_has_any_more(
        self, tmp_path: Path, first: int
    ) -> None:
        labels = [f"{code:02d}" for code in range(12)]
        embeddings = random_embeddings(14, DIM, seed=0)
        items = [
            replace(item, label=label)
            for item, label in zip(new_items(14), [*labels, "11", None], strict=True)
        ]
        live = opened(written(tmp_path / "base", embeddings, items), tmp_path / "changes")

        def relabelled(place: int) -> Upsert:
            [one] = upserts(part(embeddings, slice(place, place + 1)), items[place : place + 1])
            return replace(one, item=replace(one.item, label=f"new {place}"))

        live.commit([relabelled(place) for place in (first, 11, 13)])
        renamed = live.snapshot().renamed_labels()
        assert renamed == {f"{first:02d}": f"new {first}"}  # another item keeps "11"

    def test_label_that_became_two_or_none_is_not_renamed(self, tmp_path: Path) -> None:
        labels = ["two", "two", "none", "both", "both", "one", "one"]
        embeddings = random_embeddings(7, DIM, seed=0)
        items = [
            replace(item, label=label) for item, label in zip(new_items(7), labels, strict=True)
        ]
        live = opened(written(tmp_path / "base", embeddings, items), tmp_path / "changes")
        after = ["a", "b", None, "c", None, "d", "d"]
        live.commit(
            [Edit(item.id, {"label": label}) for item, label in zip(items, after, strict=True)]
        )
        assert live.snapshot().renamed_labels() == {"one": "d"}

    def test_item_with_another_embedding_is_not_edited(
        self, live: LiveGallery, base: FaissGallery
    ) -> None:
        kept, moved = (one.id for one in base.items(np.array([3, 4])))
        whole = live.snapshot().upsert(moved)
        mean = whole.vector.mean + 0.1 * np.linalg.norm(whole.vector.mean)
        other = replace(whole, vector=replace(whole.vector, mean=mean))
        live.commit([Edit(kept, {"label": "new"}), other])
        assert live.snapshot().edited_ids() == {kept}

    def test_items_go_into_another_gallery_with_few_questions(
        self, base: FaissGallery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        base._items._connection.set_trace_callback(asked.append)
        rows = np.array([7, 2, 5])
        found = base.with_pictures(rows)
        assert len(asked) == 2
        assert [one.id for one in found] == [one.id for one in base.items(rows)]
        assert [one.thumbnail for one in found] == [base.thumbnail(one.id) for one in found]

    def test_what_changed_is_counted_by_item(self, live: LiveGallery, base: FaissGallery) -> None:
        first, second, third = (one.id for one in base.items(np.array([0, 1, 9])))
        for seed in range(3):
            live.commit([some_upsert(first, seed=seed), some_upsert("new", seed=seed)])
        live.commit([Delete(second), some_upsert("newer"), Delete("newer")])
        live.commit([Delete(third)])
        live.commit([some_upsert(third)])
        assert live.snapshot().n_changed == 4  # first, second, third, new


class TestWriting(WritableLaws):
    @pytest.fixture
    def reopen(self, base: FaissGallery, path: Path) -> Reopen:
        return lambda: opened(base, path)

    def test_a_key_is_forgotten_in_the_end(
        self, live: LiveGallery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started = time.time()
        live.commit([some_upsert("a")], Retry("key", "request"))
        for hour in range(1, 25):
            monkeypatch.setattr(time, "time", lambda hour=hour: started + hour * 3600)
            live.commit([some_upsert("a")], Retry(f"key {hour}", "request"))
            assert live.receipt(Retry("key", "request")) is not None
        monkeypatch.setattr(time, "time", lambda: started + 24 * 3600 + 60)
        live.commit([some_upsert("b")], Retry("key", "another"))
        assert live.snapshot().version == 26
        ((n_kept,),) = sqlite3.connect(live.log.path).execute("SELECT count(*) FROM outcomes")
        assert n_kept == 25

    @pytest.mark.parametrize("jump_s", [25 * 3600.0, 1e9, -25 * 3600.0, -1e9])
    def test_a_clock_that_jumps_makes_no_key_forgotten(
        self,
        live: LiveGallery,
        reopen: Reopen,
        monkeypatch: pytest.MonkeyPatch,
        jump_s: float,
    ) -> None:
        """Or the retry of a request would bring back what has been deleted since."""
        started = time.time()
        live.commit([some_upsert("a")], Retry("put", "request"))
        live.commit([Delete("a")], Retry("delete", "request"))
        for clock in (started + jump_s, started + 1):
            monkeypatch.setattr(time, "time", lambda clock=clock: clock)
            live.commit([some_upsert("b")], Retry(f"at {clock}", "request"))
            for gallery in (live, reopen()):
                gallery.commit([some_upsert("a")], Retry("put", "request"))
                assert "a" not in ids_of(gallery.snapshot())


class TestSeveralWriters:
    def test_readers_hear_of_it_when_they_look(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        other = opened(base, path)
        live.commit([some_upsert("a")])
        assert other.snapshot().version == 0
        assert other.refresh().item("a") == live.snapshot().item("a")

    def test_its_mark_is_another_once_anybody_has_written(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        other = opened(base, path)
        marks = [other.log.mark()]
        for commit in (live.commit, opened(base, path).commit, other.commit):
            commit([some_upsert("a")])
            marks.append(other.log.mark())
        assert marks[0] == (0, 0)
        assert len({*marks}) == len(marks)
        other.refresh()
        assert other.log.mark() == marks[-1]  # reading changes nothing

    def test_an_open_log_is_read_without_looking_for_its_file(
        self, live: LiveGallery, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before each request a service compares the mark."""
        live.commit([some_upsert("a")])
        before = live.log.mark(), live.refresh()
        monkeypatch.setattr(Path, "exists", lambda _: pytest.fail("looked for the file"))
        assert (live.log.mark(), live.refresh()) == before

    @pytest.mark.parametrize("has_written", [True, False])
    @pytest.mark.parametrize("is_restored", [True, False])
    def test_a_log_whose_directory_was_moved_is_not_written(
        self,
        live: LiveGallery,
        base: FaissGallery,
        path: Path,
        *,
        has_written: bool,
        is_restored: bool,
    ) -> None:
        live.commit([some_upsert("a")])
        live.log.close()
        restored = shutil.copytree(path.parent, path.parent.with_name("restored"))
        live = opened(base, path)
        if has_written:
            live.commit([some_upsert("b")])
        moved = path.parent.rename(path.parent.with_name("moved"))
        if is_restored:
            restored.rename(path.parent)
        for _ in range(2):
            with pytest.raises(StorageFailed, match="moved or replaced") as refused:
                live.commit([some_upsert("lost")])
            assert type(refused.value) is StorageFailed  # neither log is damaged
        assert live.snapshot().version == live.refresh().version == 1 + has_written
        assert opened(base, moved / path.name).snapshot().version == 1 + has_written
        if is_restored:
            assert opened(base, path).snapshot().version == 1
            opened(base, path).commit([some_upsert("c")])  # as after a restart
        else:
            assert not path.parent.exists()

    def test_a_log_that_was_removed_with_an_older_bundle_is_superseded(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        """As a compaction by another process does; the writer then opens the current bundle."""

        def admit() -> None:
            if not path.exists():
                raise GallerySuperseded("another bundle")

        old = LiveGallery(base, ChangesFile(path, "the-bundle", "the-encoder", admit))
        old.commit([some_upsert("a")])
        path.unlink()
        with pytest.raises(GallerySuperseded):
            old.commit([some_upsert("b")])

    def test_its_mark_waits_for_nobody(self, live: LiveGallery, path: Path) -> None:
        live.commit([some_upsert("a")])
        mark = live.log.mark()
        with live.log.transaction() as turn:
            turn.add([some_upsert("b")])
            assert live.log.mark() == mark
        assert live.log.mark() != mark

    @pytest.mark.slow
    def test_one_that_does_not_end_is_not_waited_for_for_ever(
        self, live: LiveGallery, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("model_store.sqlite.BUSY_S", 0.05)
        live.commit([some_upsert("a")])
        live.close()
        hog = sqlite3.connect(path, isolation_level=None)
        hog.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(StorageBusy, match="send the request again"):
                live.commit([some_upsert("b")])
            assert live.refresh().n_items == 11  # reading goes on
        finally:
            hog.close()
        live.commit([some_upsert("b")])

    def test_readers_meet_whole_changes_only(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        """Both items of a pair are written at once, so they are found at once."""
        live.commit([some_upsert("left", seed=0), some_upsert("right", seed=0)])
        other, over = opened(base, path), threading.Event()

        def write() -> None:
            for seed in range(60):
                live.commit([some_upsert("left", seed=seed), some_upsert("right", seed=seed)])
            over.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            n_looks = 0
            while not over.is_set():
                now = other.refresh()
                left, right = now.item("left"), now.item("right")
                assert left.metadata == right.metadata
                rows = np.array([now.row("left"), now.row("right")])
                seed = int(left.metadata["seed"])
                mean = random_embeddings(1, DIM, seed=seed).mean[0]
                np.testing.assert_allclose(
                    now.directions(rows), [mean / np.linalg.norm(mean)] * 2, atol=1e-6
                )
                n_looks += 1
            writing.result()
        assert n_looks > 1


class Unconfirmed(sqlite3.Connection):
    """A connection to a disk that does not say that it has kept a transaction."""

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return super().execute(statement, *values)


class Refusing(sqlite3.Connection):
    """A connection to a log whose shared memory cannot be made."""

    def execute(self, *_: object) -> sqlite3.Cursor:
        raise sqlite3.OperationalError("unable to open database file")


class TestTrouble:
    def test_a_full_disk_is_said_and_nothing_is_lost(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        live.commit([some_upsert("a")])
        writer = live.log._writer
        assert writer is not None
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        large = NewItem("large", None, {}, Thumbnail(bytes(100_000), "image/png"))
        with pytest.raises(StorageFull, match="no room"):
            live.commit([some_upsert("b"), Upsert(large, some_upsert("x").vector)])
        for after in (live.snapshot(), opened(base, path).snapshot()):
            assert after.version == 1
            assert after.item("a").id == "a"
        writer.execute("PRAGMA max_page_count = 1000000")
        live.commit([some_upsert("b")])
        assert live.snapshot().version == 2

    def test_a_change_that_the_disk_does_not_confirm_is_not_denied(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        live.commit([some_upsert("a")])
        live.close()
        live.log._writer = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=Unconfirmed
        )
        with pytest.raises(ChangeUnconfirmed, match="so the change may be lost"):
            live.commit([some_upsert("b")], Retry("key", "request"))
        assert live.refresh().version == opened(base, path).snapshot().version == 1
        live.close()
        live.commit([some_upsert("b")], Retry("key", "request"))
        assert live.snapshot().version == 2

    def test_a_directory_that_cannot_be_made_is_said(self, base: FaissGallery, path: Path) -> None:
        path.parent.write_text("a file where the directory should be")
        with pytest.raises(StorageFailed, match="directory of changes"):
            opened(base, path).commit([some_upsert("a")])

    def test_a_log_of_another_bundle_is_refused(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        live.commit([some_upsert("a")])
        with pytest.raises(BundleMismatch, match="another bundle"):
            LiveGallery(base, ChangesFile(path, "another-bundle", "the-encoder"))
        with pytest.raises(BundleMismatch, match="another encoder"):
            LiveGallery(base, ChangesFile(path, "the-bundle", "another-encoder"))

    def test_a_damaged_log_is_not_served(
        self, live: LiveGallery, base: FaissGallery, path: Path
    ) -> None:
        live.commit([some_upsert("a")])
        live.close()
        path.write_bytes(b"not a database" * 1000)
        with pytest.raises(StorageFailed, match="cannot be read"):
            opened(base, path)

    def test_a_gallery_that_is_not_to_change_does_not(self, base: FaissGallery, path: Path) -> None:
        def refuse() -> None:
            raise GallerySuperseded("another bundle")

        live = LiveGallery(base, ChangesFile(path, "the-bundle", "the-encoder", refuse))
        with pytest.raises(GallerySuperseded):
            live.commit([some_upsert("a")])
        assert opened(base, path).snapshot().version == 0


class TestDamage:
    """Whatever is not as it was acknowledged is found, and nothing of it is served."""

    @pytest.fixture
    def kept(self, live: LiveGallery, path: Path) -> Path:
        """A log of twelve changes whose writer has ended, in one file."""
        for number in range(10):
            live.commit([some_upsert(f"n{number}", label="old", seed=number)])
        live.commit([Delete("n3"), Delete("n4")], Retry("key", "request"))
        live.close()
        assert not path.with_name(f"{path.name}-wal").exists()
        return path

    def altered(self, path: Path, statement: str, *values: object) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(statement, values)
        connection.close()

    def refused(self, base: FaissGallery, path: Path, match: str) -> None:
        with pytest.raises(LogDamaged, match=match) as caught:
            opened(base, path)
        assert "`vouch-build doctor`" in str(caught.value)

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("id", "'n6'"),
            ("label", "'new'"),
            ("label", "NULL"),
            ("metadata", "'{}'"),
            ("media_type", "'image/jpeg'"),
            ("thumbnail", "x'00'"),
            ("mean", "variance"),
            ("mean", "x''"),
            ("mean", "NULL"),
            ("variance", "zeroblob(16)"),
            ("checksums", "x''"),
            ("checksums", "'text'"),
        ],
    )
    def test_in_any_part_of_a_change(
        self, kept: Path, base: FaissGallery, column: str, value: str
    ) -> None:
        self.altered(kept, f"UPDATE changes SET {column} = {value} WHERE sequence = 5")
        self.refused(base, kept, "change 5 differs from its checksum")

    def test_by_a_change_that_is_missing_or_elsewhere(
        self, kept: Path, base: FaissGallery, tmp_path: Path
    ) -> None:
        cases = (
            ("DELETE FROM changes WHERE sequence = 5", "change 5 is missing"),
            ("DELETE FROM changes WHERE sequence = 1", "change 1 is missing"),
            ("DELETE FROM changes WHERE sequence <= 10", "change 1 is missing"),
            ("DELETE FROM changes WHERE sequence > 7", "ends with change 7, though 12"),
            ("DELETE FROM changes", "ends with change 0, though 12"),
            ("UPDATE changes SET sequence = 13 WHERE sequence = 12", "change 12 is missing"),
            ("UPDATE outcomes SET outcome = 'other'", "the outcome of a request differs"),
            ("UPDATE meta SET value = 'x' WHERE key = 'start'", "at which change it begins"),
            ("UPDATE meta SET value = '²' WHERE key = 'start'", "at which change it begins"),
            ("UPDATE meta SET value = '-1' WHERE key = 'start'", "at which change it begins"),
            ("UPDATE meta SET value = '2' WHERE key = 'start'", "change 3 is missing"),
            ("DELETE FROM meta WHERE key = 'start'", "at which change it begins"),
        )
        for number, (statement, match) in enumerate(cases):
            path = shutil.copytree(kept.parent, tmp_path / str(number)) / kept.name
            self.altered(path, statement)
            self.refused(base, path, match)
        assert opened(base, kept).snapshot().version == 12

    def test_by_a_log_that_is_gone_or_empty(self, kept: Path, base: FaissGallery) -> None:
        kept.unlink()
        self.refused(base, kept, "ends with change 0, though 12")
        kept.touch()
        self.refused(base, kept, "ends with change 0, though 12")

    @pytest.mark.parametrize("loss", ["gone", "emptied", "flipped", "cut"])
    def test_in_the_journal_that_a_kill_left(
        self, live: LiveGallery, base: FaissGallery, path: Path, tmp_path: Path, loss: str
    ) -> None:
        for number in range(6):
            live.commit([some_upsert(f"n{number}", seed=number)])
        copied = shutil.copytree(path.parent, tmp_path / "killed") / path.name  # none was closed
        journal = copied.with_name(f"{path.name}-wal")
        content = bytearray(journal.read_bytes())
        assert opened(base, copied).snapshot().version == 6
        shutil.rmtree(copied.parent)
        shutil.copytree(path.parent, copied.parent)
        copied.with_name(f"{path.name}-shm").unlink()
        if loss == "gone":
            journal.unlink()
        elif loss == "flipped":
            content[len(content) // 2] ^= 1
            journal.write_bytes(content)
        else:
            journal.write_bytes(b"" if loss == "emptied" else content[: len(content) // 2])
        with pytest.raises(StorageFailed):  # in words, whether SQLite or Vouch finds it
            opened(base, copied)

    def test_is_found_by_a_service_that_is_at_work(self, kept: Path, base: FaissGallery) -> None:
        """And from then on nothing is answered, not even what is whole."""
        live, other, late = (opened(base, kept) for _ in range(3))
        row = live.snapshot().row("n5")
        self.altered(kept, "UPDATE changes SET metadata = '{}' WHERE id = 'n5'")
        assert live.snapshot().n_items == 18
        with pytest.raises(LogDamaged, match="change 6 differs"):
            live.snapshot().items(np.array([row]))
        for work in (live.mark, live.refresh, lambda: live.commit([some_upsert("x")])):
            with pytest.raises(LogDamaged, match="change 6 differs"):
                work()
        with pytest.raises(LogDamaged, match="change 6 differs"):
            list(other.snapshot().parts())  # it is not sealed by a compaction
        self.altered(kept, "DELETE FROM changes WHERE sequence > 10")
        with pytest.raises(LogDamaged, match="ends with change 10, though 12"):
            late.commit([some_upsert("x")])

    def test_what_another_writes_while_it_is_opened_is_no_damage(
        self, live: LiveGallery, base: FaissGallery, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between one look, at the log or at the number beside it, and the other."""
        last_of = ChangesFile.last

        def last(log: ChangesFile) -> int:
            found = last_of(log)
            live.commit([some_upsert("new", seed=found)])
            return found

        monkeypatch.setattr(ChangesFile, "last", last)
        assert opened(base, path).snapshot().item("new").metadata == {"seed": 0}

    def test_an_older_number_beside_it_is_no_damage(self, kept: Path, base: FaissGallery) -> None:
        """As a power cut may leave one."""
        high = kept.with_name(f"{kept.name}.high")
        high.write_bytes(b"%020d" % 9)
        opened(base, kept).commit([some_upsert("x")])
        assert int(high.read_bytes()) == 13
        high.unlink()
        opened(base, kept).commit([some_upsert("y")])
        assert int(high.read_bytes()) == 14
        high.write_bytes(b"\0" * 20)
        self.refused(base, kept, "holds no number")

    @pytest.mark.parametrize(("last", "is_whole"), [(3, False), (4, True), (5, True)])
    def test_log_that_ends_before_the_number_is_damaged(self, last: int, is_whole: bool) -> None:
        if is_whole:
            require_reached(last, 4)
        else:
            with pytest.raises(LogDamaged, match="ends with change 3, though 4"):
                require_reached(last, 4)

    @pytest.mark.parametrize("lost", [1, 2])
    def test_lost_last_change_is_damage(self, kept: Path, base: FaissGallery, lost: int) -> None:
        """It was acknowledged, and so it is the neighbour that counts."""
        connection = sqlite3.connect(kept)
        with closing(connection), connection:
            (last,) = connection.execute("SELECT max(sequence) FROM changes").fetchone()
            connection.execute("DELETE FROM changes WHERE sequence > ?", (last - lost,))
        self.refused(base, kept, f"ends with change {last - lost}, though {last}")

    @pytest.mark.parametrize("content", [b"", b"1" * 19, b"1" * 21, b" " * 20])
    def test_number_of_another_form_is_damage_that_a_write_repairs(
        self, path: Path, content: bytes
    ) -> None:
        path.parent.mkdir()
        high = HighWater(path)
        high.path.write_bytes(content)
        with pytest.raises(LogDamaged, match="holds no number"):
            high.read()
        high.path.write_bytes(b" " * 20)
        high.raise_to(4)
        assert high.read() == 4

    @pytest.mark.parametrize(
        ("journal", "is_served"), [(None, True), (b"", True), (b"changes", False)]
    )
    def test_log_on_a_read_only_disk_is_read_unless_its_journal_has_changes(
        self,
        kept: Path,
        base: FaissGallery,
        monkeypatch: pytest.MonkeyPatch,
        journal: bytes | None,
        is_served: bool,
    ) -> None:
        """There SQLite opens the log only as a file that never changes."""
        if journal is not None:
            kept.with_name(f"{kept.name}-wal").write_bytes(journal)

        def connected(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
            if immutable:
                return connect(path, mode, immutable=True)
            return sqlite3.connect(":memory:", factory=Refusing)

        monkeypatch.setattr("model_store.sqlite.connect", connected)
        if is_served:
            assert opened(base, kept).snapshot().version == 12
        else:
            with pytest.raises(StorageFailed, match="cannot be read"):
                opened(base, kept)

    def test_number_is_made_whole_or_not(self, path: Path) -> None:
        path.parent.mkdir()
        for n_calls in range(1, 5):
            with killed_at(path.parent, n_calls):
                HighWater(path).make(3)
            assert HighWater(path).read() in {0, 3}
            remove_unfinished(path.parent)
            assert [one.name for one in path.parent.iterdir()] in ([], [f"{path.name}.high"])
            (path.parent / f"{path.name}.high").unlink(missing_ok=True)

    def test_writers_of_several_processes_never_take_the_number_back(self, path: Path) -> None:
        path.parent.mkdir()
        high = HighWater(path)
        high.make(3)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(HighWater(path).raise_to, np.random.default_rng(0).permutation(200)))
        assert high.read() == 199


def test_changes_that_a_reader_took_in_first_are_not_taken_in_again(
    live: LiveGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the writing and its own taking in."""
    transaction = ChangesFile.transaction

    @contextmanager
    def read_at_once(log: ChangesFile) -> Iterator[Transaction]:
        with transaction(log) as turn:
            yield turn
        live.refresh()

    monkeypatch.setattr(ChangesFile, "transaction", read_at_once)
    before = live.snapshot().n_rows
    live.commit([some_upsert("one")])
    assert live.snapshot().n_rows == before + 1


def test_rows_beside_the_end_of_the_base_are_each_their_own(tmp_path: Path) -> None:
    """The last of the base and the first that was put since have neighbouring rows."""
    n, folder = 3, tmp_path / "base"
    items = [replace(one, preview=f"large {one.id}".encode()) for one in new_items(n)]
    folder.mkdir()
    settings = IndexSettings(preview_side=500)
    write_faiss_gallery(folder, random_embeddings(n, DIM, 0), items, "the-encoder", settings)
    live = opened(FaissGallery(folder), tmp_path / "changes" / "x.sqlite")
    for name in ("zz1", "zz2"):
        put = some_upsert(name)
        picture = Thumbnail(name.encode(), "image/png")
        items.append(replace(put.item, thumbnail=picture, preview=f"large {name}".encode()))
        live.commit([replace(put, item=items[-1])])
    now = live.snapshot()
    whole = {item.id: item for _, part in now.parts() for item in part}
    for item in items:
        assert now.item(item.id).id == item.id
        assert (now.thumbnail(item.id), now.preview(item.id)) == (item.thumbnail, item.preview)
        assert (whole[item.id].thumbnail, whole[item.id].preview) == (item.thumbnail, item.preview)


@pytest.mark.parametrize("n_folded", [1, 2])
def test_log_that_begins_after_some_changes_has_their_version(
    live: LiveGallery, base: FaissGallery, tmp_path: Path, n_folded: int
) -> None:
    """A gallery is opened before the log that a compaction makes for it."""
    live.commit([some_upsert("a"), some_upsert("b")])
    later = opened(base, tmp_path / "later.sqlite")
    with live.log.transaction() as turn:
        turn.copy_tail(tmp_path / "later.sqlite", "the-bundle", after=n_folded)
    assert later.refresh().version == 2
    assert later.snapshot().n_rows == 12 - n_folded


def test_edit_beside_the_write_of_a_similar_id_applies_to_its_own_item() -> None:
    whole = {item_id: some_upsert(item_id, item_id) for item_id in ("abc", "zab")}
    edits = [Edit(item_id, {"metadata": {}}) for item_id in whole]
    writes: list[Write] = [some_upsert("ab", "x"), *edits]
    (_, *edited), _ = plan_writes(writes, whole, whole.__getitem__, len(whole), 0)
    assert [one.item.label for one in edited if isinstance(one, Upsert)] == ["abc", "zab"]


@pytest.mark.parametrize(
    ("system", "own"), [(900.0, 50.0), (1000.0, 50.0), (1010.0, 60.0), (9000.0, 3650.0)]
)
def test_clock_of_a_log_never_goes_back_and_advances_an_hour_at_most(
    monkeypatch: pytest.MonkeyPatch, system: float, own: float
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        log_rows.make(connection, {}, 0)
        log_rows.set_clock(connection, 1000.0, 50.0)
        monkeypatch.setattr(time, "time", lambda: system)
        assert _now(connection) == own
