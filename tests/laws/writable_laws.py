"""What every gallery keeps that takes changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import ItemNotFound, KeyReused, QuotaExceeded
from model_store.gallery import (
    Delete,
    Edit,
    Gallery,
    Item,
    NewItem,
    Retry,
    Thumbnail,
    Upsert,
    Vector,
    Writable,
    read_filter,
)
from tests.laws.gallery_laws import random_embeddings

DIM = 4
N_ITEMS = 10

Reopen = Callable[[], Writable]


def upserts(embeddings: Embeddings, items: Sequence[NewItem]) -> list[Upsert]:
    vectors = map(Vector, embeddings.mean, embeddings.variance)
    return [Upsert(item, vector) for item, vector in zip(items, vectors, strict=True)]


def item(item_id: str, label: str | None = None, **metadata: object) -> NewItem:
    return NewItem(item_id, label, metadata, Thumbnail(item_id.encode(), "image/png"))


def some_upsert(item_id: str, label: str | None = None, seed: int = 7) -> Upsert:
    return upserts(random_embeddings(1, DIM, seed), [item(item_id, label, seed=seed)])[0]


def ids_of(gallery: Gallery) -> list[str]:
    """Of everything that a search finds, in order."""
    rows = gallery.candidates(np.eye(DIM, dtype=np.float32)[:1], 1000).rows[0]
    return sorted(found.id for found in gallery.items(rows))


def nearest(gallery: Gallery, seed: int) -> str:
    """The item that lies nearest to what `some_upsert` writes with that seed."""
    rows = gallery.candidates(random_embeddings(1, DIM, seed).directions, 1).rows[0]
    return gallery.items(rows)[0].id


class WritableLaws:
    """Inherit; supply `live`, of ten items of `new_items`, and `reopen`, which opens it again."""

    def test_what_was_written_is_found_on_return(self, live: Writable) -> None:
        before = ids_of(live.snapshot())
        live.commit([some_upsert("new", "z", seed=3)])
        now = live.snapshot()
        assert nearest(now, 3) == "new"
        assert now.item("new").label == "z"
        assert now.thumbnail("new") == Thumbnail(b"new", "image/png")
        assert "z" in now.labels
        live.commit([some_upsert("new", seed=4), Delete(before[0])])
        now = live.snapshot()
        assert nearest(now, 4) == "new"
        assert now.item("new").metadata == {"seed": 4}
        assert ids_of(now) == sorted({*before[1:], "new"})
        assert (now.n_items, now.n_changed) == (N_ITEMS, 2)

    def test_rows_are_those_of_all_items_after_changes(self, live: Writable) -> None:
        before = ids_of(live.snapshot())
        live.commit([some_upsert("new", "z"), some_upsert(before[1], "x"), Delete(before[0])])
        now = live.snapshot()
        rows = now.rows()
        assert sorted(item.id for item in now.items(rows)) == sorted({*before[1:], "new"})
        assert (np.diff(rows) > 0).all()

    def test_what_was_written_is_there_after_a_restart(
        self, live: Writable, reopen: Reopen
    ) -> None:
        gone = ids_of(live.snapshot())[4]
        live.commit([some_upsert("a", "x"), Delete(gone)])
        before, after = live.snapshot(), reopen().snapshot()
        assert ids_of(after) == ids_of(before)
        assert after.item("a") == before.item("a")
        assert after.n_changed == before.n_changed == 2

    def test_commit_without_writes_changes_nothing(self, live: Writable) -> None:
        live.commit([some_upsert("a")])
        for _ in range(2):
            assert live.commit([]).written == ()
        assert (live.snapshot().n_items, live.snapshot().n_changed) == (N_ITEMS + 1, 1)
        assert [one.version for one in live.commit([some_upsert("b")]).written] == [2]

    def test_all_of_it_or_nothing(self, live: Writable) -> None:
        before = ids_of(live.snapshot())
        with pytest.raises(ItemNotFound, match="nobody"):
            live.commit([some_upsert("a"), Delete("nobody")])
        assert ids_of(live.snapshot()) == before
        with pytest.raises(ItemNotFound):
            live.snapshot().row("a")

    def test_edit_changes_label_or_metadata_and_keeps_the_rest(
        self, live: Writable, reopen: Reopen
    ) -> None:
        new, built = some_upsert("new", "x", seed=3), ids_of(live.snapshot())[4]
        live.commit([new])
        before = live.snapshot()
        receipt = live.commit([Edit("new", {"label": "z"}), Edit(built, {"metadata": {"b": 1}})])
        assert [(one.existed, one.version) for one in receipt.written] == [(True, 2), (True, 3)]
        for after in (live.snapshot(), reopen().snapshot()):
            assert after.item("new") == Item("new", "z", {"seed": 3})
            assert after.item(built) == Item(built, before.item(built).label, {"b": 1})
            assert (after.n_items, after.n_changed) == (N_ITEMS + 1, 2)
            for item_id in ("new", built):
                rows = np.array([before.row(item_id)]), np.array([after.row(item_id)])
                for part in ("directions", "variances", "total_variances"):
                    values = [getattr(before, part)(rows[0]), getattr(after, part)(rows[1])]
                    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-7)
                assert after.thumbnail(item_id) == before.thumbnail(item_id)
            passing = after.matching(read_filter('{"label": "z"}'))
            found = after.candidates(np.eye(1, DIM, dtype=np.float32), 9, passing).rows[0]
            assert after.label_codes(found).tolist() == [list(after.labels).index("z")]
        live.commit([Edit("new", {"label": None}), Edit("new", {"metadata": {}})])
        assert live.snapshot().item("new") == Item("new", None, {})

    def test_edit_keeps_the_picture_that_another_process_has_put(
        self, live: Writable, reopen: Reopen
    ) -> None:
        item_id, other = ids_of(live.snapshot())[2], reopen()
        other.commit([some_upsert(item_id, "y", seed=8)])
        live.commit([Edit(item_id, {"label": "z"})])
        now = live.snapshot()
        assert nearest(now, 8) == item_id
        assert now.item(item_id) == Item(item_id, "z", {"seed": 8})

    def test_edit_of_a_missing_item_changes_nothing(self, live: Writable) -> None:
        first, second = ids_of(live.snapshot())[:2]
        label = live.snapshot().item(first).label
        for last in (Edit("none", {"label": "z"}), Edit(second, {"label": "z"})):
            with pytest.raises(ItemNotFound, match="has no item with the id"):
                live.commit([Edit(first, {"label": "z"}), Delete(second), last])
        assert live.snapshot().item(first).label == label

    def test_a_receipt_has_each_write_in_order(self, live: Writable) -> None:
        writes: list[Upsert | Delete] = [
            some_upsert("a"),
            some_upsert("a"),
            Delete("a"),
            some_upsert("a"),
        ]
        receipts = [live.commit(writes), live.commit([Delete("a")])]
        written = [one for receipt in receipts for one in receipt.written]
        assert {one.id for one in written} == {"a"}
        assert [(one.existed, one.version) for one in written] == [
            (False, 1),
            (True, 2),
            (True, 3),
            (False, 4),
            (True, 5),
        ]

    def test_gallery_whose_last_item_is_deleted_is_empty_and_takes_items(
        self, live: Writable, reopen: Reopen
    ) -> None:
        live.commit([Delete(item_id) for item_id in ids_of(live.snapshot())])
        for emptied in (live, reopen()):
            gallery = emptied.snapshot()
            assert (gallery.n_items, ids_of(gallery)) == (0, [])
            directions = np.eye(2, gallery.dim, dtype=np.float32)
            assert gallery.candidates(directions, 3).rows.shape == (2, 0)
            allowed = gallery.matching(read_filter('{"id": {"exists": true}}'))
            assert gallery.candidates(directions, 3, allowed).rows.shape == (2, 0)
        live.commit([some_upsert("a")])
        assert live.snapshot().candidates(directions, 3).rows.shape == (2, 1)

    def test_there_are_no_more_items_than_there_may_be(
        self, live: Writable, reopen: Reopen
    ) -> None:
        """Also where another has written since this one looked."""
        other = reopen()
        other.commit([some_upsert("a")], most_items=N_ITEMS + 1)
        with pytest.raises(QuotaExceeded, match="this request would make 12"):
            live.commit([some_upsert("b")], most_items=N_ITEMS + 1)
        live.commit([some_upsert("a"), Delete("a"), some_upsert("b")], most_items=N_ITEMS + 1)
        live.commit([some_upsert("b", "z")], most_items=1)
        assert "b" in ids_of(live.snapshot())
        assert live.snapshot().n_items == N_ITEMS + 1

    def test_a_gallery_may_be_exchanged_whole(self, live: Writable) -> None:
        live.commit([some_upsert("only"), *map(Delete, ids_of(live.snapshot()))])
        assert ids_of(live.snapshot()) == ["only"]

    def test_the_same_request_is_carried_out_once(self, live: Writable, reopen: Reopen) -> None:
        retry = Retry("key", "request")
        assert live.receipt(retry) is None
        told = live.commit([some_upsert("a")], retry, {"sent": "first"})
        assert told.note == {"sent": "first"}
        for again in (live, reopen()):
            assert again.receipt(retry) == told
            assert again.commit([some_upsert("a", seed=9)], retry, {"sent": "again"}) == told
        assert live.refresh().item("a").metadata == {"seed": 7}

    def test_a_key_is_of_one_request(self, live: Writable) -> None:
        live.commit([some_upsert("a")], Retry("key", "request"))
        for refused in (live.receipt, lambda retry: live.commit([some_upsert("b")], retry)):
            for other in ("another", "req", "quest"):
                with pytest.raises(KeyReused, match="another request"):
                    refused(Retry("key", other))
        assert "b" not in ids_of(live.snapshot())

    def test_threads_take_turns(self, live: Writable) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: live.commit([some_upsert(f"n{i}", seed=i)]), range(12)))
        now = live.snapshot()
        assert now.n_items == N_ITEMS + 12
        for i in range(12):
            row = now.row(f"n{i}")
            expected = random_embeddings(1, DIM, seed=i).directions
            np.testing.assert_allclose(now.directions(np.array([row])), expected, atol=1e-6)

    def test_one_sees_what_another_wrote_before_it_writes(
        self, live: Writable, reopen: Reopen
    ) -> None:
        other = reopen()
        live.commit([some_upsert("a")])
        other.commit([Delete("a"), some_upsert("b")])
        with pytest.raises(ItemNotFound):
            live.commit([Delete("a")])
        live.commit([some_upsert("c", seed=8)])
        assert {"b", "c"} <= set(ids_of(live.snapshot()))
        assert ids_of(other.refresh()) == ids_of(live.snapshot())
