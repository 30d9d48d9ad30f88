"""Old bundles go with their changes; what is current, previous or open stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import (
    CURRENT_FILE,
    activate,
    bundle_ids,
    current_id,
    is_bundle_id,
    previous_id,
)
from model_store.bundles.manifest import MANIFEST_FILE, Manifest, read_manifest
from model_store.bundles.retention import Hold, prune
from model_store.errors import BundleNotFound
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.support.live_bundles import DIM, compaction, opened, published, upsert


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return published(tmp_path, random_embeddings(9, DIM, seed=0), new_items(9))


def compacted(root: Path, times: int) -> list[str]:
    """All ids, oldest first, after so many compactions."""
    ids = [str(current_id(root))]
    for number in range(times):
        live = opened(root)
        live.commit([upsert(f"n{number}", number)])
        with compaction(root, live) as one:
            one.prepare()
            one.switch()
        live.close()
        ids.append(str(current_id(root)))
    for age, bundle_id in enumerate(ids):
        os.utime(root / bundle_id / MANIFEST_FILE, (1e9 + age, 1e9 + age))
    return ids


def logs(root: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in (root / "changes").iterdir()}


@pytest.mark.parametrize(("keep", "left"), [(1, 2), (2, 2), (3, 3), (5, 5), (9, 5)])
def test_the_newest_are_kept(root: Path, keep: int, left: int) -> None:
    """And the previous one, though only the current one was asked for."""
    ids = compacted(root, 4)
    assert prune(root, keep, dry_run=True) == ids[: 5 - left]
    assert bundle_ids(root) == ids
    assert prune(root, keep) == ids[: 5 - left]
    assert bundle_ids(root) == ids[5 - left :]
    assert logs(root) == set(ids[5 - left :])
    assert not list(root.glob(".*.removed"))
    assert opened(root).snapshot().n_items == 13


def test_after_going_back_what_is_served_and_what_was_stay(root: Path) -> None:
    ids = compacted(root, 3)
    activate(root, ids[0])
    prune(root, 1)
    assert bundle_ids(root) == [ids[0], ids[3]]


def test_a_bundle_without_a_log_is_not_removed_by_a_service(root: Path) -> None:
    """It may be there to be activated; one that was compacted from another was served."""
    ids = compacted(root, 4)
    (root / "changes" / f"{ids[0]}.sqlite").unlink()
    activate(root, ids[2])
    activate(root, ids[4])
    assert prune(root, 2, compacted=True) == [ids[1], ids[3]]
    assert prune(root, 2) == [ids[0]]


def next_one(root: Path, name: str) -> str:
    """The id of the bundle that a service makes of a change."""
    live = opened(root)
    live.commit([upsert(name, 1)])
    with compaction(root, live) as one:
        one.publish()
    live.close()
    new = str(current_id(root))
    age = 2e9 + len(bundle_ids(root)) + len(name)
    os.utime(root / new / MANIFEST_FILE, (age, age))
    return new


def test_changes_that_were_left_by_going_back_stay_longest(root: Path) -> None:
    """The page promises that one can return; only an operator removes them."""
    ids = compacted(root, 3)
    activate(root, ids[1])
    for name in ("b", "bb", "bbb", "bbbb"):
        next_one(root, name)
        prune(root, 3, compacted=True)
    there = bundle_ids(root)
    assert (len(there), ids[3] in there) == (3, True)
    now = opened(root, ids[3]).snapshot()
    found = {item.id for item in now.items(now.page(None, 99))}
    assert {f"n{number}" for number in range(3)} <= found
    assert prune(root, 3) == []
    assert prune(root, 2) == [ids[3]]


def test_changes_after_the_compaction_are_only_in_the_bundle_itself(root: Path) -> None:
    """One went back, changed something, and returned to the newer bundle."""
    ids = compacted(root, 1)
    activate(root, ids[0])
    live = opened(root)
    live.commit([upsert("late", 1)])
    live.close()
    activate(root, ids[1])
    for name in ("b", "bb", "bbb"):
        next_one(root, name)
        prune(root, 3, compacted=True)
    assert ids[0] in bundle_ids(root)


def test_a_damaged_bundle_is_no_copy_of_another(root: Path) -> None:
    ids = compacted(root, 3)
    (root / ids[1] / MANIFEST_FILE).write_text("{}")
    os.utime(root / ids[1] / MANIFEST_FILE, (1e9 + 1, 1e9 + 1))
    assert prune(root, 3, compacted=True) == [ids[1]]


def test_a_bundle_with_another_calibration_names_the_bundle_it_was_made_of(root: Path) -> None:
    first = str(current_id(root))
    live = opened(root)
    live.commit([upsert("new", 1)])

    def calibrate(_gallery: object, _staging: Path, manifest: Manifest) -> Manifest:
        return replace(manifest, metrics={"fitted": "again"})

    with Compaction(root, read_manifest(root / first), live, calibrate=calibrate) as one:
        directory = one.prepare()
        one.switch()
    manifest = read_manifest(directory)
    assert (manifest.metrics, manifest.gallery["compacted_from"]) == ({"fitted": "again"}, first)


@pytest.mark.process
def test_one_that_is_open_stays_whoever_has_it_open(root: Path) -> None:
    ids = compacted(root, 3)
    said = "import sys, pathlib\nfrom model_store.bundles.retention import Hold\n"
    said += "hold = Hold(pathlib.Path(sys.argv[1]))\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", said, str(root / ids[0])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with Hold(root / ids[1]), Hold(root / ids[1]):
            assert prune(root, 1) == []
        assert prune(root, 1) == [ids[1]]
        assert bundle_ids(root) == [ids[0], *ids[2:]]
        other.communicate()
    assert prune(root, 1) == [ids[0]]
    with pytest.raises(BundleNotFound):
        Hold(root / ids[0])


def test_one_that_a_compaction_has_prepared_stays(root: Path) -> None:
    live = opened(root)
    live.commit([upsert("new", 1)])
    with compaction(root, live) as one:
        prepared = one.prepare()
        assert prune(root, 1) == []
        one.switch()
    assert current_id(root) == prepared.name
    assert opened(root).snapshot().n_items == 10


@pytest.mark.parametrize("compacted_alone", [True, False])
def test_one_that_is_activated_meanwhile_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch, compacted_alone: bool
) -> None:
    """After it was looked at which is the current one, and before the others are removed."""
    ids = compacted(root, 3)

    def activating(root: Path) -> str | None:
        before = previous_id(root)
        activate(root, ids[0])
        return before

    monkeypatch.setattr("model_store.bundles.retention.previous_id", activating)
    prune(root, 1, compacted=compacted_alone)
    assert current_id(root) == ids[0]
    assert ids[0] in bundle_ids(root)
    assert ids[0] in logs(root)


def test_one_that_another_process_removes_meanwhile_is_listed_no_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was found, and before it is known how old it is."""
    ids = compacted(root, 2)

    def seen(name: object) -> bool:
        shutil.rmtree(root / ids[0], ignore_errors=True)
        return is_bundle_id(name)

    monkeypatch.setattr("model_store.bundles.directory.is_bundle_id", seen)
    assert bundle_ids(root) == ids[1:]


@pytest.mark.parametrize("pointer", [None, b"\xff\xfe", b"../x"])
def test_without_a_current_one_nothing_is_removed(root: Path, pointer: bytes | None) -> None:
    ids = compacted(root, 3)
    (root / CURRENT_FILE).unlink()
    if pointer is not None:
        (root / CURRENT_FILE).write_bytes(pointer)
    assert prune(root, 1) == []
    assert bundle_ids(root) == ids


def test_what_an_interrupted_removal_left_is_removed(root: Path) -> None:
    ids = compacted(root, 2)
    (root / ids[0]).rename(root / f".{ids[0]}.removed")
    strange = {root / f".{ids[1]}0.removed", root / f".0{ids[1]}.removed"}
    for folder in strange:  # not of a bundle
        folder.mkdir()
    prune(root, 9, dry_run=True)
    assert ids[0] in logs(root)
    prune(root, 9)
    assert logs(root) == set(ids[1:])
    assert set(root.glob(".*.removed")) == strange
