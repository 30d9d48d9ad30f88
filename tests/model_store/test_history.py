"""The history of a gallery's bundles."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles.directory import bundle_ids, current_id, locate
from model_store.bundles.history import BundleSummary, bundle_history
from model_store.bundles.manifest import MANIFEST_FILE, read_manifest
from model_store.bundles.publish import publish
from model_store.bundles.signatures import new_key, read_private_key, write_signature
from model_store.decision import Calibration, outcome_of
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.support.kept_worlds import ITEMS, OF_ITEMS, calibrated
from tests.support.live_bundles import DIM, published
from tests.support.narrowing import not_none
from tests.support.released_bundles import released


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A calibrated bundle."""
    return locate(calibrated(tmp_path, np.empty(0, dtype=np.int64)))


def only(*directories: Path) -> BundleSummary:
    [found] = bundle_history(directories)
    return found


def test_summary_has_the_outcome_of_the_calibration(bundle: Path) -> None:
    found = only(bundle)
    calibration = not_none(Calibration.load(bundle))
    summary = not_none(found.calibration)
    assert summary.outcome == outcome_of(calibration)
    assert (summary.queries, summary.delta) == ("held_out_images", calibration.delta)
    assert (found.id, found.reason, found.release) == (bundle.name, None, None)
    assert (found.n_items, found.n_labels) == (len(ITEMS), len(set(OF_ITEMS.tolist())))


def test_times_are_those_of_the_files(bundle: Path) -> None:
    os.utime(bundle / MANIFEST_FILE, (2e9, 2e9))
    os.utime(bundle / CALIBRATION_FILE, (1e9, 1e9))
    found = only(bundle)
    assert found.published_at == datetime.fromtimestamp(2e9, UTC)
    assert not_none(found.calibration).written_at == datetime.fromtimestamp(1e9, UTC)
    assert found.as_json()["published_at"] == "2033-05-18T03:33:20+00:00"


def test_bundle_without_calibration_has_none(tmp_path: Path) -> None:
    root = published(tmp_path, random_embeddings(9, DIM, seed=0), new_items(9))
    found = only(locate(root))
    assert (found.n_items, found.calibration, found.reason) == (9, None, None)


def test_first_label_counts_and_items_without_a_label_do_not(tmp_path: Path) -> None:
    items = [replace(item, label=name) for item, name in zip(new_items(4), "aab", strict=False)]
    items += [replace(new_items(4)[3], label=None)]
    found = only(locate(published(tmp_path, random_embeddings(4, DIM, seed=0), items)))
    assert (found.n_items, found.n_labels) == (4, 2)


def test_signature_changes_no_order(tmp_path: Path) -> None:
    root = published(tmp_path, random_embeddings(9, DIM, seed=0), new_items(9))
    first = locate(root)
    staging = shutil.copytree(first, tmp_path / "copy")
    second = publish(staging, replace(read_manifest(first), metrics={}), root)
    for age, directory in enumerate((first, second)):
        os.utime(directory / MANIFEST_FILE, (1e9 + age, 1e9 + age))
    new_key(tmp_path / "publisher.key")
    key = read_private_key(tmp_path / "publisher.key")
    write_signature(first, read_manifest(first), key)
    assert bundle_ids(root) == [first.name, second.name]


def test_bundle_is_read_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = only(bundle)
    monkeypatch.delattr("model_store.bundles.history.parse_manifest")
    assert only(bundle) == found


@pytest.mark.parametrize("name", [MANIFEST_FILE, CALIBRATION_FILE, ARRAYS_FILE, "labels.npy"])
@pytest.mark.parametrize("damage", ["changed", "removed", "a folder"])
def test_damaged_bundle_has_a_reason_until_it_is_repaired(
    bundle: Path, tmp_path: Path, name: str, damage: str
) -> None:
    whole = shutil.copytree(bundle, tmp_path / "whole" / bundle.name)
    path, content = bundle / name, (bundle / name).read_bytes()
    if damage == "changed":
        path.write_bytes(b"[]" + content[2:])
    else:
        path.unlink()
    if damage == "a folder":
        path.mkdir()
    found = bundle_history([bundle, whole])
    if name == MANIFEST_FILE and damage == "removed":
        assert [one.id for one in found] == [bundle.name]  # `whole` alone
        return
    damaged, other = found
    assert str(damaged.reason).startswith("The bundle cannot be read. ")
    assert (damaged.id, damaged.n_items, damaged.calibration) == (bundle.name, None, None)
    assert (other.reason, other.calibration is None) == (None, False)
    if damage == "a folder":
        path.rmdir()
    path.write_bytes(content)
    assert only(bundle).calibration == replace(
        not_none(other.calibration), written_at=not_none(only(bundle).calibration).written_at
    )


def test_bundle_of_an_earlier_schema_has_a_reason(tmp_path: Path) -> None:
    found = only(locate(released("schema-7", tmp_path)))
    assert "schema version 7; this release reads 8. Run `vouch-build upgrade" in str(found.reason)
    assert not_none(found.reason).code == "bundle_unreadable"


def test_bundle_of_an_earlier_release_is_summarised(tmp_path: Path) -> None:
    found = only(locate(released("0.2.0", tmp_path)))
    assert found.reason is None
    assert not_none(found.calibration).outcome.n_queries


def test_calibration_of_another_release_has_a_reason(bundle: Path, tmp_path: Path) -> None:
    staging = shutil.copytree(bundle, tmp_path / "other")
    numbers = json.loads((staging / CALIBRATION_FILE).read_bytes())
    del numbers["delta"]
    (staging / CALIBRATION_FILE).write_text(json.dumps(numbers))
    other = publish(staging, read_manifest(bundle), bundle.parent)
    first, second = bundle_history([bundle, other])
    assert first.reason is None
    assert "is not a calibration of this release (KeyError)" in str(second.reason)
    assert "`vouch-build calibrate`" in str(second.reason)


def test_removed_bundle_is_left_out(bundle: Path) -> None:
    shutil.rmtree(bundle)
    assert bundle_history([bundle]) == []
    assert current_id(bundle.parent) == bundle.name
