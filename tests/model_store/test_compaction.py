"""Compaction: the same gallery as a new bundle, whatever is written meanwhile, or crashes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.bundles.changes import changes_path
from model_store.bundles.compaction import _N_FREE_BYTES
from model_store.bundles.directory import (
    ACTIVATION_LOCK,
    CURRENT_FILE,
    activate,
    bundle_ids,
    current_id,
    previous_id,
)
from model_store.bundles.manifest import read_manifest
from model_store.bundles.publish import publish
from model_store.decision import Calibration, label_means
from model_store.errors import GallerySuperseded, ItemNotFound, LogDamaged, StorageBusy, StorageFull
from model_store.files import lock_between_processes
from model_store.gallery import (
    Delete,
    IndexSettings,
    Item,
    LiveGallery,
    NewItem,
    Retry,
    Thumbnail,
    Upsert,
    Vector,
    parse_filter,
)
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.support.live_bundles import compaction, opened, peak_of_compaction, published, upsert

N, DIM = 30, 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return published(tmp_path, random_embeddings(N, DIM, seed=0), new_items(N))


Content = dict[str, tuple[Item, Thumbnail, NDArray[np.float32]]]


def content(live: LiveGallery) -> Content:
    """All there is of each item."""
    now = live.refresh()
    rows = now.page(None, 10**6)
    vectors = np.column_stack([now.directions(rows), now.variances(rows)])
    items = now.items(rows)
    assert [item.id for item in items] == sorted(item.id for item in items)
    return {
        item.id: (item, now.thumbnail(item.id), vector)
        for item, vector in zip(items, vectors, strict=True)
    }


def assert_same(found: Content, expected: Content) -> None:
    """The same items, with the same vectors but for rounding."""
    assert found.keys() == expected.keys()
    for item_id, (item, thumbnail, vector) in expected.items():
        assert found[item_id][:2] == (item, thumbnail)
        np.testing.assert_allclose(found[item_id][2], vector, rtol=1e-5, atol=1e-6)


def change(live: LiveGallery) -> None:
    ids = [item.id for item in live.snapshot().items(np.arange(3))]
    live.commit([upsert(ids[0], 1, "z"), Delete(ids[1]), upsert("new", 2, "aa"), upsert("gone", 3)])
    live.commit([Delete("gone")], Retry("key", "request"), {"said": "first"})


def test_the_new_bundle_holds_the_same_and_has_no_changes(root: Path) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)
    before = content(live)
    with compaction(root, live) as one:
        directory = one.prepare()
        assert current_id(root) == old
        one.switch()
    assert (current_id(root), previous_id(root)) == (directory.name, old)
    read_manifest(directory)
    new = opened(root)
    assert_same(content(new), before)
    assert new.snapshot().n_appended == 0
    assert new.snapshot().version == live.snapshot().version
    assert new.snapshot().labels == ("a", "aa", "b", "c", "z")
    assert new.snapshot().n_changed == live.snapshot().n_changed == 3
    assert (directory / "encoder.onnx").read_bytes() == b"an encoder"


@pytest.mark.parametrize(
    ("named", "indexed"),
    [
        (None, {"place": "bundle", "seed": "bundle"}),
        (("seed",), {"place": "memory", "seed": "bundle"}),
    ],
)
def test_it_indexes_the_fields_that_were_asked_for(
    tmp_path: Path, named: tuple[str, ...] | None, indexed: dict[str, str]
) -> None:
    settings = IndexSettings(filter_fields=named)
    root = published(tmp_path, random_embeddings(N, DIM, seed=0), new_items(N), settings)
    live = opened(root)
    change(live)
    part = parse_filter({"or": [{"place": {"gte": 20}}, {"seed": {"exists": True}}]})
    before = {item.id for item in live.snapshot().items(live.snapshot().matching(part).rows())}
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    after = opened(root).snapshot()
    found = after.matching(part)
    assert {item.id for item in after.items(found.rows())} == before
    assert found.indexes == indexed
    assert after.filter_fields == named


def test_what_is_written_meanwhile_goes_along(root: Path) -> None:
    live = opened(root)
    change(live)
    with compaction(root, live) as one:
        one.prepare()
        live.commit([upsert("late", 5), Delete("new")])
        before = content(live)
        one.switch()
    new = opened(root)
    assert_same(content(new), before)
    new.commit([upsert("later", 6)])
    assert new.snapshot().version == live.snapshot().version + 1
    assert opened(root).snapshot().item("later").metadata == {"seed": 6}


@pytest.mark.process  # of its own: threads that other tests have left would count
def test_it_holds_a_part_of_the_gallery_at_a_time(tmp_path: Path) -> None:
    n, dim = 12_000, 128
    picture = Thumbnail(bytes(1_000), "image/png")
    items = [NewItem(f"{i:05d}", "abc"[i % 3], {}, picture) for i in range(n)]
    root = published(tmp_path, random_embeddings(n, dim, seed=0), items)
    live = opened(root)
    vector = Vector(*random_embeddings(2, dim, seed=1).mean)
    live.commit([Delete("00007"), Upsert(NewItem("00008a", "d", {}, picture), vector)])
    live.close()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        peak = pool.submit(peak_of_compaction, root).result()
    # Less than the directions alone, of which the index has the only copy.
    assert peak < n * dim * 4
    now = opened(root).snapshot()
    assert now.n_items == n
    assert [one.id for one in now.items(np.arange(6, 10))] == ["00006", "00008", "00008a", "00009"]


def test_it_asks_of_the_index_what_was_asked_at_first(tmp_path: Path) -> None:
    """Or a gallery that was to fit into little memory would take more of it ever after."""
    n, dim = 3_000, 16
    settings = IndexSettings("ivf_pq", memory_budget_bytes=70_000, min_recall=0.2)
    root = published(tmp_path, random_embeddings(n, dim, seed=0), new_items(n), settings)
    live = opened(root)
    before = live.snapshot().index
    assert before.n_bytes <= 70_000
    live.commit([upsert("new", 1, dim=dim)])
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    after = opened(root).snapshot().index
    assert (after.kind, after.factory, after.min_recall) == ("ivf_pq", before.factory, 0.2)
    assert after.n_bytes <= after.memory_budget_bytes == 70_000


def test_requests_are_known_again_after_it(root: Path) -> None:
    live = opened(root)
    change(live)
    with compaction(root, live) as one:
        one.prepare()
        live.commit([upsert("late", 5)], Retry("late", "request"), {"said": "late"})
        one.switch()
    new = opened(root)
    assert new.commit([Delete("gone")], Retry("key", "request")).note == {"said": "first"}
    late = new.log.receipt(Retry("late", "request"))
    assert late is not None
    assert late.note == {"said": "late"}


def test_the_new_log_is_guarded_from_the_beginning(root: Path) -> None:
    live = opened(root)
    live.commit([upsert("a", 1), upsert("b", 2)])
    with compaction(root, live) as one:
        one.prepare()
        live.commit([upsert("c", 3)])
        one.switch()
    changes_path(root, str(current_id(root))).unlink()
    with pytest.raises(LogDamaged, match="ends with change 0, though 3"):
        opened(root)


def test_previews_go_along(tmp_path: Path) -> None:
    items = [replace(item, preview=item.id.encode()) for item in new_items(N)]
    settings = IndexSettings(preview_side=500)
    root = published(tmp_path, random_embeddings(N, DIM, seed=0), items, settings)
    live = opened(root)
    there, gone = (item.id for item in items[:2])
    new = upsert("new", 2)
    live.commit([Delete(gone), replace(new, item=replace(new.item, preview=b"larger"))])
    live.commit([upsert("plain", 3)])
    with compaction(root, live) as one:
        one.prepare()
        late = upsert(there, 4)
        live.commit([replace(late, item=replace(late.item, preview=b"another"))])
        one.switch()
    for now in (opened(root).snapshot(), live.snapshot()):
        assert now.preview_side == 500
        wanted = {"new": b"larger", "plain": b"", there: b"another", items[2].id: items[2].preview}
        assert {name: now.preview(name) for name in wanted} == wanted
        with pytest.raises(ItemNotFound):
            now.preview(gone)


@pytest.mark.parametrize(("table", "column"), [("features", "features"), ("previews", "preview")])
def test_damage_beside_a_change_is_found(root: Path, table: str, column: str) -> None:
    one = upsert("a", 1)
    vector = replace(one.vector, features=np.ones(3, np.float32))
    opened(root).commit([Upsert(replace(one.item, preview=b"larger"), vector)])
    connection = sqlite3.connect(changes_path(root, str(current_id(root))))
    with connection:
        connection.execute(f"UPDATE {table} SET {column} = x'00'")
    connection.close()
    with pytest.raises(LogDamaged, match="damaged"):
        opened(root)


def test_a_log_of_a_release_without_previews_takes_them(root: Path) -> None:
    opened(root).commit([upsert("a", 1)])
    connection = sqlite3.connect(changes_path(root, str(current_id(root))))
    with connection:
        connection.execute("DROP TABLE previews")
    connection.close()
    live, one = opened(root), upsert("b", 2)
    assert live.snapshot().preview("a") == b""
    live.commit([Upsert(replace(one.item, preview=b"larger"), one.vector)])
    assert (live.snapshot().preview("a"), live.snapshot().preview("b")) == (b"", b"larger")


def test_a_damaged_change_is_not_sealed(root: Path) -> None:
    live = opened(root)
    live.commit([upsert("a", 1)])
    connection = sqlite3.connect(changes_path(root, str(current_id(root))))
    with connection:
        connection.execute("UPDATE changes SET label = 'another'")
    connection.close()
    before = bundle_ids(root)
    with pytest.raises(LogDamaged), compaction(root, live) as one:
        one.prepare()
    assert bundle_ids(root) == before


def test_the_old_bundle_takes_no_more_changes(root: Path) -> None:
    live = opened(root)
    change(live)
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    with pytest.raises(GallerySuperseded, match="accepts no more changes"):
        live.commit([upsert("lost", 5)])
    live.refresh()
    with pytest.raises(ItemNotFound):
        live.snapshot().row("lost")


def test_what_another_process_has_compacted_is_not_prepared_again(root: Path) -> None:
    live, late = opened(root), opened(root)
    change(live)
    stale = compaction(root, late)
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    with pytest.raises(GallerySuperseded), stale:
        stale.prepare()
    with compaction(root, opened(root)):  # the lock was let go of
        pass


def test_going_back_is_going_back_to_that_moment(root: Path) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)
    before = content(live)
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    opened(root).commit([upsert("after", 9)])
    activate(root, old)
    assert_same(content(opened(root)), before)
    opened(root).commit([upsert("again", 9)])


def test_without_its_end_nothing_is_left(root: Path) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)
    with compaction(root, live) as one:
        one.prepare()
    assert bundle_ids(root) == [old]
    assert not list(root.glob(".*.compacting"))
    assert current_id(root) == old
    live.commit([upsert("after", 9)])


def test_only_one_goes_on_at_a_time(root: Path) -> None:
    live = opened(root)
    change(live)
    with compaction(root, live), pytest.raises(StorageBusy, match="Another process is compacting"):
        compaction(root, opened(root)).__enter__()
    with compaction(root, live) as one:
        one.prepare()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_one_that_comes_too_late_does_not_take_over(
    root: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)
    other = root / ("f" * 16)
    with compaction(root, live) as one:
        prepared = one.prepare().name
        shutil.copytree(root / old, other)
        if when == "before":
            activate(root, other.name)
        else:
            publishes = "model_store.bundles.compaction.flush"
            monkeypatch.setattr(publishes, lambda _: activate(root, other.name))
        with pytest.raises(GallerySuperseded):
            one.switch()
        monkeypatch.undo()
    assert current_id(root) == other.name
    assert sorted(bundle_ids(root)) == sorted([old, other.name])
    assert not changes_path(root, prepared).exists()


def test_what_is_published_just_before_the_pointer_is_written_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)
    other = root / ("f" * 16)
    shutil.copytree(root / old, other)

    def after_another(place: Path, bundle_id: str, **options: str) -> None:
        activate(place, other.name)
        activate(place, bundle_id, **options)

    monkeypatch.setattr("model_store.bundles.compaction.activate", after_another)
    with compaction(root, live) as one:
        one.prepare()
        with pytest.raises(GallerySuperseded):
            one.switch()
    assert current_id(root) == other.name


def test_activations_come_one_after_the_other(root: Path) -> None:
    old = str(current_id(root))
    lock = lock_between_processes(root / ACTIVATION_LOCK)
    with lock, ThreadPoolExecutor() as threads:
        waiting = threads.submit(activate, root, "f" * 16, old)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        (root / CURRENT_FILE).write_text("e" * 16)
        lock.release()
        with pytest.raises(GallerySuperseded, match="e" * 16):
            waiting.result()


def test_no_room_is_said_and_nothing_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, compaction(root, live) as one:
        patch.setattr("model_store.files.os.fsync", full)
        with pytest.raises(StorageFull):
            one.prepare()
    with compaction(root, live) as one:
        one.prepare()
        with monkeypatch.context() as patch:
            patch.setattr("model_store.files.os.fsync", full)
            with pytest.raises(StorageFull):
                one.switch()
    assert current_id(root) == old
    assert bundle_ids(root) == [old]
    live.commit([upsert("after", 9)])


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("model_store.bundles.publish.link_or_copy", OSError(28, "No space left on device")),
        ("model_store.bundles.compaction.write_faiss_parts", RuntimeError("write error in f")),
        (
            "model_store.bundles.compaction.write_faiss_parts",
            sqlite3.OperationalError("database or disk is full"),
        ),
    ],
)
def test_no_room_is_said_whoever_finds_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)

    def full(*arguments: object) -> None:
        raise error

    usage = shutil.disk_usage(root)
    with monkeypatch.context() as patch, compaction(root, live) as one:
        patch.setattr(place, full)
        patch.setattr("shutil.disk_usage", lambda _: usage._replace(free=4096))
        with pytest.raises(StorageFull, match="no room"):
            one.prepare()
    assert bundle_ids(root) == [old]
    assert not list(root.glob(".*.compacting"))
    if not isinstance(error, OSError):  # with room, it is something else
        for free, raised in ((_N_FREE_BYTES, StorageFull), (_N_FREE_BYTES + 1, type(error))):
            with monkeypatch.context() as patch, compaction(root, live) as one:
                patch.setattr(place, full)
                patch.setattr("shutil.disk_usage", lambda _, n=free: usage._replace(free=n))
                with pytest.raises(raised):
                    one.prepare()


STOPS = {
    "model_store.bundles.compaction.seal": 1,
    "model_store.bundles.compaction.changes_path": 1,  # the bundle is there, its log is not
    "model_store.bundles.directory._write_pointer": 2,  # log and PREVIOUS are there
}


def crash_at(root: Path, name: str, n_calls: int) -> None:
    """Compact, and end as by a power cut at a call."""
    patch = pytest.MonkeyPatch()
    calls = iter(range(1, 100))

    def stop(real: Callable[..., object]) -> Callable[..., object]:
        def stopped(*arguments: object) -> object:
            if next(calls) == n_calls:
                os._exit(7)
            return real(*arguments)

        return stopped

    module, attribute = name.rsplit(".", 1)
    imported = __import__(module, fromlist=[attribute])
    patch.setattr(name, stop(getattr(imported, attribute)))
    with compaction(root, opened(root)) as one:
        one.prepare()
        one.switch()


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.process
def test_a_crash_leaves_the_old_gallery_whole(root: Path, name: str) -> None:
    live, old = opened(root), str(current_id(root))
    change(live)
    before = content(live)
    process = multiprocessing.get_context("spawn").Process(
        target=crash_at, args=(root, name, STOPS[name])
    )
    process.start()
    process.join()
    assert process.exitcode == 7
    assert current_id(root) == old
    assert_same(content(opened(root)), before)
    live.commit([upsert("after", 9)])
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    after = content(opened(root))
    assert after.pop("after")[0].metadata == {"seed": 9}
    assert_same(after, before)
    assert not list(root.glob(".*.compacting"))


def test_files_beside_those_of_the_gallery_are_copied(root: Path, tmp_path: Path) -> None:
    """Also one that is called like a file of the gallery, and more."""
    first, staging = root / str(current_id(root)), tmp_path / "with more"
    shutil.copytree(first, staging, ignore=shutil.ignore_patterns("manifest.json"))
    names = ("samples/1.png", "norms.npy.txt", "items.sqlite.note")
    for name in names:
        (staging / name).parent.mkdir(exist_ok=True)
        (staging / name).write_text(name)
    publish(staging, read_manifest(first), root)
    live = opened(root)
    change(live)
    with compaction(root, live) as one:
        directory = one.prepare()
        one.switch()
    assert [(directory / name).read_text() for name in names] == [*names]


def test_a_calibration_goes_along(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    live = opened(root)
    generator = np.random.default_rng(0)
    dim = live.snapshot().dim
    vector = Vector(*(generator.uniform(0.1, 1, (2, dim)).astype(np.float32)))
    picture = Thumbnail(b"", "image/png")
    live.commit([Upsert(NewItem("new", "3½", {}, picture), vector)])
    with compaction(root, live) as one:
        one.prepare()
        one.switch()
    new = opened(root).snapshot()
    old_calibration = Calibration.load(digits_bundle)
    calibration = Calibration.load(root / str(current_id(root)))
    assert calibration is not None
    assert old_calibration is not None
    code = new.labels.index("3½")
    assert 0 < code < len(new.labels) - 1  # so that others have another code than before
    expected = vector.mean / np.linalg.norm(vector.mean)
    np.testing.assert_allclose(calibration.means.directions[code], expected, atol=1e-6)
    others = np.delete(calibration.means.directions, code, axis=0)
    np.testing.assert_allclose(others, old_calibration.means.directions, atol=1e-6)
    np.testing.assert_array_equal(calibration.means.directions, label_means(new).directions)
    assert calibration.match_fingerprint == old_calibration.match_fingerprint
