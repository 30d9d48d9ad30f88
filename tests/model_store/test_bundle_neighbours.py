"""Names, draws and counts of bundles: what just passes, and its neighbours that do not."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles import item_features
from model_store.bundles.backup import BUNDLE_FOLDER, LOG_FILE, SUMMARY_FILE, _wanted
from model_store.bundles.item_features import ItemFeatures
from model_store.bundles.manifest import MANIFEST_FILE, content_files, parse_manifest
from model_store.errors import ArchiveError, BundleTampered
from model_store.half_precision import HalfRows


@pytest.mark.parametrize("name", [SUMMARY_FILE, LOG_FILE, f"{BUNDLE_FOLDER}/a"])
def test_member_of_a_backup_is_restored(name: str) -> None:
    member = tarfile.TarInfo(name)
    assert _wanted(member) is member


@pytest.mark.parametrize(
    "name",
    [
        f"x{SUMMARY_FILE}",
        f"{LOG_FILE}x",
        f"x{BUNDLE_FOLDER}/a",
        f"{BUNDLE_FOLDER}s/a",
        f"{BUNDLE_FOLDER}/../a",
        f"/{BUNDLE_FOLDER}/a",
    ],
)
def test_neighbour_of_a_member_is_refused(name: str) -> None:
    with pytest.raises(ArchiveError, match="a backup of Vouch has no such file"):
        _wanted(tarfile.TarInfo(name))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (BUNDLE_FOLDER, tarfile.DIRTYPE),
        (f"{BUNDLE_FOLDER}/a", tarfile.DIRTYPE),
    ],
)
def test_folder_of_the_bundle_is_restored(name: str, kind: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind
    assert _wanted(member) is member


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("other", tarfile.DIRTYPE),
        (SUMMARY_FILE, tarfile.DIRTYPE),
        (f"{BUNDLE_FOLDER}s", tarfile.DIRTYPE),
        (f"{BUNDLE_FOLDER}/a", tarfile.SYMTYPE),
        (f"{BUNDLE_FOLDER}/a", tarfile.LNKTYPE),
        (f"{BUNDLE_FOLDER}/a", tarfile.FIFOTYPE),
    ],
)
def test_folder_or_link_that_no_backup_has_is_refused(name: str, kind: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind
    with pytest.raises(ArchiveError, match="a backup of Vouch has no such file"):
        _wanted(member)


def test_links_are_files_of_a_bundle_wherever_they_lead(tmp_path: Path) -> None:
    """So that a manifest, which lists none, does not fit a bundle that has one."""
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a.png").write_bytes(b"a")
    (tmp_path / "file").symlink_to("samples/a.png")
    (tmp_path / "folder").symlink_to("samples")
    (tmp_path / "nowhere").symlink_to("missing")
    assert content_files(tmp_path) == ["file", "folder", "nowhere", "samples/a.png"]


@pytest.mark.parametrize("listed", ["samples/a.png.png", "samples/a.pn", "xsamples/a.png"])
def test_sample_is_listed_by_its_whole_name(digits_bundle: Path, listed: str) -> None:
    manifest = json.loads((digits_bundle / MANIFEST_FILE).read_text("utf-8"))
    sample = manifest["samples"][0]
    manifest["files"][listed] = manifest["files"].pop(sample["file"])
    sample["file"] = "samples/a.png"
    with pytest.raises(BundleTampered, match="the file of the sample 1 is not listed"):
        parse_manifest(json.dumps(manifest).encode(), "it")


def test_thinned_sample_keeps_whole_groups_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 400
    monkeypatch.setattr(item_features, "MOST_ITEMS", 100)
    items = ItemFeatures(
        tuple(f"item-{i}" for i in range(n)),
        tuple(f"group-{i // 2}" for i in range(n)),
        HalfRows.of(np.zeros((n, 4), dtype=np.float32)),
        np.zeros(n, dtype=bool),
        share=0.5,
    )
    thinned = items.thinned()
    assert 60 <= len(thinned) <= 140
    assert thinned.share == 0.125
    assert all(thinned.groups.count(group) == 2 for group in set(thinned.groups))
    assert items.at(np.arange(100)).thinned().share == 0.5  # at the limit all are kept
