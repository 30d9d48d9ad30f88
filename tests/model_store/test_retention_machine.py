"""Whatever is done to a directory of bundles, and wherever it is killed, little is left of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model_store.bundles.backup import back_up, restore
from model_store.bundles.changes import CHANGES_FOLDER
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import (
    ACTIVATION_LOCK,
    COMPACTION_LOCK,
    CURRENT_FILE,
    PREVIOUS_FILE,
    PUBLISH_LOCK,
    activate,
    bundle_ids,
    current_id,
    previous_id,
)
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.bundles.retention import Hold, prune
from model_store.bundles.signatures import SECRET_FILE, secret_of
from model_store.gallery import Delete, NewItem, Thumbnail, write_faiss_gallery
from tests.laws.gallery_laws import random_embeddings
from tests.support.killing import killed_at
from tests.support.live_bundles import opened, upsert

KEEP, DIM = 3, 3
KNOWN_FILES = {CURRENT_FILE, PREVIOUS_FILE, CHANGES_FOLDER} | {
    ACTIVATION_LOCK,
    COMPACTION_LOCK,
    PUBLISH_LOCK,
    SECRET_FILE,
}
KILL = st.one_of(st.just(0), st.integers(1, 60))
"""The call at which the process is killed; 0: it is not."""


class RetentionMachine(RuleBasedStateMachine):
    """Compactions, calibrations, activations, restores and kills, in any order."""

    @initialize()
    def begin(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name) / "disk"
        self.root = self.folder / "bundles0"
        self.folder.mkdir()
        self.n = 0
        self.holds: dict[str, Hold] = {}
        self.of_bundles: dict[str, frozenset[str]] = {}
        self.deleted: set[str] = set()
        self.publish(0)

    @property
    def items(self) -> frozenset[str]:
        return self.of_bundles[str(current_id(self.root))]

    def attempt(self, work: Callable[[], object], kill: int, *acceptable: frozenset[str]) -> None:
        """Do something, which may be killed; bundles that are new then hold what is acceptable."""
        with killed_at(self.folder, kill):
            work()
        for hold in self.holds.values():  # of other processes, which live on
            hold.close()
        self.holds = {one: Hold(self.root / one) for one in self.holds}
        for bundle_id in bundle_ids(self.root):
            with closing(opened(self.root, bundle_id)) as live:
                now = live.snapshot()
                found = frozenset(item.id for item in now.items(now.page(None, 99)))
            assert found in (*acceptable, self.of_bundles.get(bundle_id))
            self.of_bundles[bundle_id] = found

    def commit(self, change: Callable[[frozenset[str]], frozenset[str]], *writes: object) -> None:
        with closing(opened(self.root)) as live:
            live.commit([*writes])  # type: ignore[list-item]
        current = str(current_id(self.root))
        self.of_bundles[current] = change(self.items)

    @rule()
    def put(self) -> None:
        self.n += 1
        name = f"item-{self.n}-of-it"
        self.commit(lambda items: items | {name}, upsert(name, self.n, dim=DIM))

    @precondition(lambda self: hasattr(self, "root") and len(self.items) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.items)))
        self.commit(lambda items: items - {gone}, Delete(gone))
        self.deleted.add(gone)

    @rule(calibrated=st.booleans(), kill=KILL)
    def compact(self, calibrated: bool, kill: int) -> None:
        def calibrate(_gallery: object, _staging: Path, manifest: Manifest) -> Manifest:
            return replace(manifest, metrics={"fitted": self.n})

        def work() -> None:
            manifest = read_manifest(self.root / str(current_id(self.root)))
            with (
                closing(opened(self.root)) as live,
                Compaction(
                    self.root, manifest, live, calibrate=calibrate if calibrated else None
                ) as one,
            ):
                one.prepare()
                one.switch()

        self.put()
        self.attempt(work, kill, self.items)

    @rule(kill=KILL)
    def publish(self, kill: int) -> None:
        self.n += 1
        name = f"item-{self.n}-of-it"
        staging = self.folder.with_name(f"staging{self.n}")
        staging.mkdir()
        item = NewItem(name, None, {}, Thumbnail(name.encode(), "image/png"))
        write_faiss_gallery(staging, random_embeddings(1, DIM, self.n), [item], "e")
        manifest = Manifest({"name": "g"}, {"fingerprint": "e"}, None, None, (), {})
        self.attempt(lambda: publish(staging, manifest, self.root), kill, frozenset({name}))
        if current_id(self.root) is None:  # the first was killed
            publish(staging, manifest, self.root)

    @rule(data=st.data(), kill=KILL)
    def activate(self, data: st.DataObject, kill: int) -> None:
        chosen = data.draw(st.sampled_from(bundle_ids(self.root)))
        self.attempt(lambda: activate(self.root, chosen), kill)

    @rule(kill=st.integers(1, 6))
    def serve(self, kill: int) -> None:
        manifest = read_manifest(self.root / str(current_id(self.root)))
        (self.root / SECRET_FILE).unlink(missing_ok=True)
        self.attempt(lambda: secret_of(self.root, manifest), kill)

    @rule(kill=KILL)
    def prune_as_an_operator(self, kill: int) -> None:
        self.attempt(lambda: prune(self.root, KEEP), kill)
        prune(self.root, KEEP)
        assert len(bundle_ids(self.root)) <= KEEP + len(self.holds)

    @rule(kill=KILL, is_there=st.booleans())
    def restore(self, kill: int, is_there: bool) -> None:
        """To another directory, which may be there; what is killed is tried again."""
        self.release()
        archive, items = self.folder / "backup.tar", self.items
        self.n += 1
        before, new = self.root, self.folder / f"bundles{self.n}"
        if is_there:
            new.mkdir()

        def work() -> None:
            back_up(before, archive)
            restore(archive, new)

        self.attempt(work, kill)
        archive.unlink(missing_ok=True)
        self.root = new
        if not (new / CURRENT_FILE).exists():
            back_up(before, archive)
            restore(archive, new)
            archive.unlink()
        self.attempt(lambda: None, 0, items)
        assert self.items == items
        shutil.rmtree(before)
        assert [path.name for path in self.folder.iterdir()] == [new.name]

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(bundle_ids(self.root)))
        self.holds.setdefault(chosen, Hold(self.root / chosen))

    @rule()
    def release(self) -> None:
        for hold in self.holds.values():
            hold.close()
        self.holds.clear()

    @invariant()
    def is_tidy(self) -> None:
        if not hasattr(self, "root"):
            return
        prune(self.root, KEEP, compacted=True)  # as a service does now and then
        ids = set(bundle_ids(self.root))
        assert current_id(self.root) in ids
        assert previous_id(self.root) in {*ids, None}
        assert {path.name for path in self.root.iterdir()} <= KNOWN_FILES | ids
        logs = {path.name.partition(".sqlite")[0] for path in self._logs()}
        assert logs <= ids
        assert len(logs) <= KEEP + len(self.holds)

    def _logs(self) -> list[Path]:
        folder = self.root / CHANGES_FOLDER
        return [*folder.iterdir()] if folder.exists() else []

    def teardown(self) -> None:
        """What was deleted is gone from the disk after as many compactions as bundles are kept."""
        if not hasattr(self, "root"):
            return
        self.release()
        for _ in range(KEEP):
            self.compact(calibrated=False, kill=0)
            prune(self.root, KEEP)
        content = b"".join(path.read_bytes() for path in self.root.rglob("*") if path.is_file())
        for item in self.items:
            assert item.encode() in content
        for item in self.deleted - self.items:
            assert item.encode() not in content
        self.place.cleanup()


TestRetention = RetentionMachine.TestCase
TestRetention.settings = settings(
    max_examples=8,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink takes minutes
)
