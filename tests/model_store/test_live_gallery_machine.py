"""A live gallery beside a dictionary of vectors: whatever is done, they say the same."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from numpy.typing import NDArray

from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import activate, current_id, previous_id
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.encoder.contract import Embeddings
from model_store.errors import GallerySuperseded, ItemNotFound
from model_store.gallery import (
    Delete,
    GallerySnapshot,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    write_faiss_gallery,
)

DIM = 3
IDS = st.sampled_from([f"i{number}" for number in range(8)])
# Few, so that items often lie at the same place.
PLACES = st.integers(0, 9)
SIZES = st.sampled_from([0.5, 2.0])
CLOSE = 2e-6


@dataclass(frozen=True)
class Expected:
    """What is known of one item."""

    place: int
    size: float
    written: int

    @property
    def direction(self) -> NDArray[np.float64]:
        mean = direction_of(self.place)
        return mean / np.linalg.norm(mean)

    @property
    def item(self) -> tuple[str | None, dict[str, object]]:
        return (f"l{self.place % 4}" if self.place % 4 else None), {"written": self.written}


Known = dict[str, Expected]


def direction_of(place: int) -> NDArray[np.float64]:
    return np.random.default_rng(place).standard_normal(DIM)


def upsert(item_id: str, known: Expected) -> Upsert:
    mean = (known.size * direction_of(known.place)).astype(np.float32)
    variance = np.full(DIM, 0.1 * known.size**2, dtype=np.float32)
    picture = Thumbnail(f"{item_id} {known.written}".encode(), "image/png")
    return Upsert(NewItem(item_id, *known.item, picture), Vector(mean, variance))


def check(gallery: GallerySnapshot, known: Known, place: int, n: int) -> None:
    """Ids, vectors, labels, metadata and pictures, and the order of what is found."""
    query = direction_of(100 + place).astype(np.float32)
    query /= np.linalg.norm(query)
    found = gallery.candidates(query[None], n)
    rows, similarities = found.rows[0], found.similarities[0]
    items = gallery.items(rows)
    assert len({item.id for item in items}) == len(items) == min(n, len(known))
    exact = {item_id: float(one.direction @ query) for item_id, one in known.items()}
    for item, direction, similarity in zip(
        items, gallery.directions(rows), similarities, strict=True
    ):
        expected = known[item.id]
        assert abs(similarity - exact[item.id]) < CLOSE
        np.testing.assert_allclose(direction, expected.direction, atol=CLOSE)
        assert (item.label, item.metadata) == expected.item
        picture = gallery.thumbnail(item.id).data
        assert picture == f"{item.id} {expected.written}".encode()
    order = [(-similarity, item.id) for similarity, item in zip(similarities, items, strict=True)]
    assert order == sorted(order)
    left = exact.keys() - {item.id for item in items}
    assert all(exact[item_id] <= similarities[-1] + CLOSE for item_id in left)


pytestmark = pytest.mark.slow


class LiveGalleryMachine(RuleBasedStateMachine):
    """Upserts, deletions, searches, compactions, swaps and restarts in any order."""

    snapshots = Bundle("snapshots")

    @initialize(
        places=st.lists(st.tuples(IDS, PLACES), min_size=2, max_size=6, unique_by=lambda p: p[0])
    )
    def build(self, places: list[tuple[str, int]]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.root, staging = Path(self.folder.name) / "bundles", Path(self.folder.name) / "staging"
        staging.mkdir()
        self.n_written = 0
        self.known: Known = {item_id: self._new(place, 1.0) for item_id, place in places}
        writes = [upsert(item_id, one) for item_id, one in self.known.items()]
        mean = np.stack([write.vector.mean for write in writes])
        variance = np.stack([write.vector.variance for write in writes])
        embeddings = Embeddings(mean, variance, np.empty((len(mean), 0), dtype=np.float32))
        write_faiss_gallery(staging, embeddings, [write.item for write in writes], "e")
        manifest = Manifest({"name": "g"}, {"fingerprint": "e"}, None, None, (), {})
        first = publish(staging, manifest, self.root).name
        self.of_bundles: dict[str, Known] = {first: self.known}
        self.restart()

    def _new(self, place: int, size: float) -> Expected:
        self.n_written += 1
        return Expected(place, size, self.n_written)

    @rule()
    def restart(self) -> None:
        """Open what lies on the disk."""
        self.serving = str(current_id(self.root))
        self.live = open_live(self.root, self.root / self.serving)
        self.other = open_live(self.root, self.root / self.serving)

    @rule(item_id=IDS, place=PLACES, size=SIZES)
    def put(self, item_id: str, place: int, size: float) -> None:
        one = self._new(place, size)
        self.live.commit([upsert(item_id, one)])
        self._know({**self.known, item_id: one})

    @rule(item_id=IDS, place=PLACES)
    def put_by_another_process(self, item_id: str, place: int) -> None:
        one = self._new(place, 1.0)
        self.other.commit([upsert(item_id, one)])
        self._know({**self.known, item_id: one})
        self.live.refresh()

    @rule(writes=st.lists(st.tuples(IDS, PLACES | st.none()), max_size=5))
    def batch(self, writes: list[tuple[str, int | None]]) -> None:
        after = dict(self.known)
        todo: list[Upsert | Delete] = []
        missing = False
        for item_id, place in writes:
            if place is None:
                missing = missing or item_id not in after
                after.pop(item_id, None)
                todo.append(Delete(item_id))
            else:
                after[item_id] = self._new(place, 1.0)
                todo.append(upsert(item_id, after[item_id]))
        try:
            self.live.commit(todo)
        except ItemNotFound:
            assert missing
        else:
            assert not missing
            self._know(after)

    @rule(item_id=IDS)
    def delete(self, item_id: str) -> None:
        self.batch([(item_id, None)])

    @rule(item_id=IDS, place=PLACES)
    def compact(self, item_id: str, place: int) -> None:
        """While something is written; what was served before takes no more."""
        with Compaction(self.root, read_manifest(self.root / self.serving), self.live) as one:
            one.prepare()
            self.put(item_id, place, 1.0)
            one.switch()
        try:
            self.live.commit([upsert("lost", self._new(0, 1.0))])
        except GallerySuperseded:
            self.of_bundles[str(current_id(self.root))] = self.known
            self.restart()
        else:
            raise AssertionError("a bundle that is not current was written to")

    @rule()
    def swap(self) -> None:
        """Go back to the bundle before, and to what it held last."""
        before = previous_id(self.root)
        if before is not None:
            activate(self.root, before)
            self.known = self.of_bundles[before]
            self.restart()

    def _know(self, known: Known) -> None:
        self.known = self.of_bundles[self.serving] = known

    @rule(target=snapshots)
    def remember(self) -> tuple[GallerySnapshot, Known]:
        return self.live.snapshot(), self.known

    @rule(kept=consumes(snapshots), place=PLACES)
    def search_what_was(self, kept: tuple[GallerySnapshot, Known], place: int) -> None:
        check(*kept, place, 20)

    @rule(place=PLACES, n=st.integers(1, 10))
    def search(self, place: int, n: int) -> None:
        check(self.live.snapshot(), self.known, place, n)

    @invariant()
    def lists_what_there_is(self) -> None:
        if not hasattr(self, "live"):
            return
        now = self.live.snapshot()
        assert [item.id for item in now.items(now.page(None, 99))] == sorted(self.known)
        assert now.n_items == len(self.known)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestLiveGallery = LiveGalleryMachine.TestCase
TestLiveGallery.settings = settings(max_examples=25, stateful_step_count=25)
