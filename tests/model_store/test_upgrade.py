"""Bundles of earlier releases are upgraded, and answer as they did."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import current_id, galleries_below, previous_id
from model_store.bundles.manifest import MANIFEST_FILE, SCHEMA_VERSION, read_manifest
from model_store.bundles.upgrade import old_schema, upgrade
from model_store.errors import (
    BundleMismatch,
    BundleTampered,
    ItemNotFound,
    LogDamaged,
    StorageBusy,
)
from model_store.files import json_text
from model_store.gallery.milvus.collection import MILVUS_FILE
from model_store.sqlite import connect
from tests.support.released_bundles import RELEASES, released

SCHEMAS = {"0.1.0": 1, "schema-6": 6, "schema-7": 7}


@pytest.mark.parametrize("release", RELEASES)
def test_upgraded_bundle_answers_as_the_release_did(release: str, tmp_path: Path) -> None:
    root = released(release, tmp_path)
    done = upgrade(root)
    assert (None if done is None else done.schema) == SCHEMAS.get(release)
    assert old_schema(root) is None
    retriever = open_bundle(root, "cpu").retriever
    for image, matches in json.loads((root / "answers.json").read_text(encoding="utf-8")).items():
        found = retriever.search(bytes.fromhex(image), 5).matches
        assert [(one.id, one.label) for one in found] == [
            (item_id, label) for item_id, label, _ in matches
        ]
        wanted = [similarity for *_, similarity in matches]
        assert [one.similarity for one in found] == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize("release", [name for name in RELEASES if name != "0.1.0"])
def test_upgrade_keeps_live_items(release: str, tmp_path: Path) -> None:
    root = released(release, tmp_path)
    upgrade(root)
    gallery = open_bundle(root, "cpu").retriever.gallery
    assert gallery.item("99/new").metadata == {"put": True}
    assert gallery.item("00/0.png").metadata == {"put": True}
    assert gallery.thumbnail("99/new").data.startswith(b"\x89PNG")
    for deleted in ("01/1.png", "98/gone"):
        with pytest.raises(ItemNotFound):
            gallery.item(deleted)


def test_upgrade_makes_the_old_bundle_the_previous_one_and_leaves_it_whole(tmp_path: Path) -> None:
    root = released("schema-6", tmp_path)
    before = str(current_id(root))
    done = upgrade(root)
    assert done is not None
    assert (done.before, done.after) == (before, current_id(root))
    assert (done.n_items, done.n_changes) == (48, 4)
    assert previous_id(root) == before
    assert read_manifest(root / before, (6,)).schema_version == 6
    assert upgrade(root) is None
    assert not list(root.glob(".*upgrading"))


def test_calibration_of_release_0_2_answers_without_guarantee(tmp_path: Path) -> None:
    root = released("0.2.0", tmp_path)
    retriever = open_bundle(root, "cpu").retriever
    assert "vouch-build upgrade BUNDLES" in str(retriever.stale)
    image = next(iter(json.loads((root / "answers.json").read_text(encoding="utf-8"))))
    answer = retriever.search(bytes.fromhex(image), 5)
    assert len(answer.matches) == 5
    assert answer.decision.verdict == "not_calibrated"
    assert answer.decision.reason == retriever.stale


def test_calibration_of_schema_1_is_left_out(tmp_path: Path) -> None:
    root = released("0.1.0", tmp_path)
    done = upgrade(root)
    assert done is not None
    assert done.left_calibration
    opened = open_bundle(root, "cpu")
    assert opened.retriever.calibration is None
    assert opened.manifest.calibration is None
    assert opened.manifest.metrics is None


def test_upgrade_while_a_change_is_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only after some seconds: the service of the old release still runs."""
    monkeypatch.setattr("model_store.bundles.upgrade.connect", partial(connect, patience_s=0))
    root = released("schema-7", tmp_path)
    before = str(current_id(root))
    log = root / "changes" / f"{before}.sqlite"
    with closing(sqlite3.connect(log, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageBusy, match="has been writing"):
            upgrade(root)
        assert current_id(root) == before
    assert upgrade(root) is not None


def test_upgrade_of_damaged_bundle_is_refused(tmp_path: Path) -> None:
    root = released("0.1.0", tmp_path)
    norms = root / str(current_id(root)) / "norms.npy"
    norms.write_bytes(norms.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BundleTampered, match=r"norms\.npy differs"):
        upgrade(root)


@pytest.mark.parametrize("release", ["schema-6", "schema-7"])
def test_upgrade_with_changes_of_another_bundle_is_refused(release: str, tmp_path: Path) -> None:
    root = released(release, tmp_path)
    before = str(current_id(root))
    with closing(sqlite3.connect(root / "changes" / f"{before}.sqlite")) as log, log:
        log.execute("UPDATE meta SET value = 'other' WHERE key = 'bundle'")
    with pytest.raises(BundleMismatch, match="belong to the bundle other"):
        upgrade(root)
    assert current_id(root) == before


def test_upgrade_with_changes_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    root = released("schema-7", tmp_path)
    with closing(sqlite3.connect(root / "changes" / f"{current_id(root)}.sqlite")) as log, log:
        log.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(BundleMismatch, match="have format 99"):
        upgrade(root)


def test_upgrade_with_damaged_changes_is_refused(tmp_path: Path) -> None:
    root = released("schema-7", tmp_path)
    before = str(current_id(root))
    with closing(sqlite3.connect(root / "changes" / f"{before}.sqlite")) as log, log:
        log.execute("UPDATE changes SET label = 'x' WHERE sequence = 1")
    with pytest.raises(LogDamaged, match="change 1 differs"):
        upgrade(root)
    assert current_id(root) == before


def _rewritten(root: Path, **fields: object) -> None:
    """Give the current bundle another manifest, whose id goes with it."""
    directory = root / str(current_id(root))
    manifest = json.loads((directory / MANIFEST_FILE).read_bytes()) | fields
    (directory / MANIFEST_FILE).write_text(json_text(manifest), encoding="utf-8")


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 10 * SCHEMA_VERSION])
def test_upgrade_of_later_release_is_refused(tmp_path: Path, version: int) -> None:
    root = released("0.1.0", tmp_path)
    _rewritten(root, schema_version=version)
    with pytest.raises(BundleMismatch, match="or a later release"):
        upgrade(root)


def test_upgrade_of_gallery_in_milvus_is_refused(tmp_path: Path) -> None:
    root = released("schema-6", tmp_path)
    (root / str(current_id(root)) / MILVUS_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(BundleMismatch, match="is in Milvus: this gallery cannot be upgraded"):
        upgrade(root)


def test_galleries_below_finds_created_galleries(tmp_path: Path) -> None:
    for folder in (".", "galleries/0123456789abcdef", "galleries/.unfinished.partial"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "CURRENT").write_text("x", encoding="ascii")
    assert galleries_below(tmp_path) == [tmp_path, tmp_path / "galleries/0123456789abcdef"]
