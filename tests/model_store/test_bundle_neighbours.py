"""Names, draws and counts of bundles: what just passes, and its neighbours that do not."""

from __future__ import annotations

import errno
import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_store.bundles import compaction, kept_queries, upgrade
from model_store.bundles import manifest as manifests
from model_store.bundles.backup import BUNDLE_FOLDER, LOG_FILE, SUMMARY_FILE, _wanted
from model_store.bundles.changes import open_live
from model_store.bundles.directory import locate
from model_store.bundles.kept_queries import ItemFeatures
from model_store.bundles.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    _file_name,
    _sample_name,
    content_files,
    describe_file,
    describe_shared,
    parse_manifest,
    read_manifest,
    verify_file,
)
from model_store.bundles.publish import ENCODER_FILES, publish, seal
from model_store.errors import ArchiveError, BundleTampered, ItemNotFound
from model_store.gallery import Item
from model_store.gallery.files.gallery import GALLERY_FILES, FaissGallery
from model_store.table import HalfRows
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.support.live_bundles import DIM, published


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
        (f"x{BUNDLE_FOLDER}", tarfile.DIRTYPE),
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


def test_sparse_member_is_refused() -> None:
    """Its few bytes may stand for a file that fills the disk."""
    member: Any = tarfile.TarInfo(f"{BUNDLE_FOLDER}/a")
    member.type, member.sparse = tarfile.GNUTYPE_SPARSE, [(0, 1)]
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


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        *((name, False) for name in (MANIFEST_FILE, SIGNATURE_FILE)),
        *((f"{name}2", True) for name in (MANIFEST_FILE, SIGNATURE_FILE)),
        *((f"a{name}", True) for name in (MANIFEST_FILE, SIGNATURE_FILE)),
    ],
)
def test_manifest_lists_neither_itself_nor_its_signature(name: str, allowed: bool) -> None:
    if allowed:
        assert _file_name(name) == name
        return
    with pytest.raises(ValueError, match="cannot be listed"):
        _file_name(name)


def test_only_the_manifest_and_its_signature_are_no_content(tmp_path: Path) -> None:
    neighbours = [f"a-{MANIFEST_FILE}", f"{MANIFEST_FILE}2", f"{SIGNATURE_FILE}2"]
    for name in (MANIFEST_FILE, SIGNATURE_FILE, *neighbours):
        (tmp_path / name).write_bytes(b"")
    assert content_files(tmp_path) == sorted(neighbours)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("samples/a.png", True),
        ("samples/a.jpg", False),
        ("samples/a.png2", False),
        ("other/a.png", False),
        ("samples2/a.png", False),
    ],
)
def test_sample_is_a_png_file_in_its_folder(name: str, allowed: bool) -> None:
    if allowed:
        assert _sample_name(name) == name
        return
    with pytest.raises(ValueError, match="a PNG file in samples"):
        _sample_name(name)


@pytest.mark.parametrize(
    ("n_links", "age_s", "is_cached"), [(1, 9.0, False), (2, 1.5, False), (2, 2.5, True)]
)
def test_digest_of_a_shared_file_is_cached_once_its_time_stamp_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_links: int, age_s: float, is_cached: bool
) -> None:
    monkeypatch.setattr(manifests, "_SHARED_FILES", {})
    path = tmp_path / "a"
    path.write_bytes(b"content")
    for number in range(1, n_links):
        (tmp_path / f"link{number}").hardlink_to(path)
    now = path.stat().st_mtime + age_s
    monkeypatch.setattr("model_store.bundles.manifest.time.time", lambda: now)
    assert describe_shared(path) == describe_file(path)
    assert len(manifests._SHARED_FILES) == is_cached


@pytest.mark.parametrize("copy", [compaction._copy_rest, upgrade._copy])
def test_only_files_with_their_whole_names_are_rewritten(
    tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    left_out = {*GALLERY_FILES, *(upgrade._LEFT_OUT if copy is upgrade._copy else ())}
    neighbours = {f"{name}2" for name in left_out} | {f"a-{name}" for name in left_out}
    for name in left_out | neighbours:
        (before / name).write_bytes(b"")
    copy(before, after)
    assert {path.name for path in after.iterdir()} == neighbours - left_out


def test_bundle_is_published_from_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = published(tmp_path, random_embeddings(5, DIM, seed=0), new_items(5))
    directory = locate(root)
    staging = shutil.copytree(directory, tmp_path / "elsewhere")
    stat, rename = Path.stat, Path.rename

    def stat_there(path: Path, **options: Any) -> Any:
        found = stat(path, **options)
        return (
            SimpleNamespace(st_mode=found.st_mode, st_dev=found.st_dev + 1)
            if path == staging
            else found
        )

    def rename_here(path: Path, target: Path) -> Path:
        if path == staging:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "stat", stat_there)
    monkeypatch.setattr(Path, "rename", rename_here)
    other = publish(staging, read_manifest(directory), tmp_path / "others", keep=False)
    assert (other.name, content_files(other)) == (directory.name, content_files(directory))


def test_sealed_bundle_takes_the_place_of_no_other(tmp_path: Path) -> None:
    directory = locate(published(tmp_path, random_embeddings(5, DIM, seed=0), new_items(5)))
    copy = shutil.copytree(directory, directory.with_name("copy"))
    with pytest.raises(OSError, match="not empty"):
        seal(copy, read_manifest(directory))
    assert (directory / MANIFEST_FILE).exists()


def test_compaction_links_files_of_the_encoder_alone(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    neighbours = [name for file in ENCODER_FILES for name in (f"{file}2", f"a-{file}")]
    for name in (*ENCODER_FILES, *neighbours):
        (before / name).write_bytes(b"")
    compaction._copy_rest(before, after)
    linked = {path.name for path in after.iterdir() if path.samefile(before / path.name)}
    assert linked == {*ENCODER_FILES}


@pytest.mark.parametrize("listed", ["samples/a.png.png", "samples/a.pn", "xsamples/a.png", "a.png"])
def test_sample_is_listed_by_its_whole_name(digits_bundle: Path, listed: str) -> None:
    manifest = json.loads((digits_bundle / MANIFEST_FILE).read_text("utf-8"))
    sample = manifest["samples"][0]
    manifest["files"][listed] = manifest["files"].pop(sample["file"])
    sample["file"] = "samples/a.png"
    with pytest.raises(BundleTampered, match="the file of the sample 1 is not listed"):
        parse_manifest(json.dumps(manifest).encode(), "it")


def sample(ids: Sequence[str], groups: Sequence[str], share: float) -> ItemFeatures:
    n = len(ids)
    features = HalfRows.of(np.zeros((n, 4), dtype=np.float32))
    return ItemFeatures(tuple(ids), tuple(groups), features, np.zeros(n, dtype=bool), share)


def test_updated_sample_keeps_items_with_names_like_those_of_changed_ones() -> None:
    def row(item_id: str) -> int:
        if item_id == "gone":
            raise ItemNotFound(item_id)
        return 0

    snapshot: Any = SimpleNamespace(
        appended_ids=lambda: ["1", "edited"],
        edited_ids=lambda: {"edited"},
        put_features=lambda _: {},
        row=row,
        items=lambda _: [],
    )
    ids = ["1", "10", "21", "edited", "gone"]
    assert sample(ids, ids, 0.5).updated(snapshot).ids == ("10", "21", "edited")


def test_updated_sample_draws_its_share_of_added_items() -> None:
    added = [f"new {number}" for number in range(400)]
    drawn: list[str] = []

    def put_features(ids: Sequence[str]) -> dict[str, bytes]:
        drawn.extend(ids)
        return {}

    snapshot: Any = SimpleNamespace(
        appended_ids=lambda: added,
        edited_ids=set,
        put_features=put_features,
        row=added.index,
        items=lambda _: [],
    )
    sample([], [], 0.25).updated(snapshot)
    assert 60 <= len(drawn) <= 140
    assert set(drawn) < set(added)
    by_item = set(drawn)
    drawn.clear()
    snapshot.items = lambda rows: [
        Item(added[row], None, {"group": f"visit {row // 4}"}) for row in rows
    ]
    sample([], [], 0.25).updated(snapshot)
    assert set(drawn) != by_item
    assert 60 <= len(drawn) <= 140
    assert set(Counter(added.index(one) // 4 for one in drawn).values()) == {4}, "whole groups"


def test_thinned_sample_keeps_whole_groups_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 400
    monkeypatch.setattr(kept_queries, "MOST_ITEMS", 100)
    items = sample([f"item-{i}" for i in range(n)], [f"group-{i // 2}" for i in range(n)], 0.5)
    thinned = items.thinned()
    assert 60 <= len(thinned) <= 140
    assert thinned.share == 0.125
    assert all(thinned.groups.count(group) == 2 for group in set(thinned.groups))
    for n_items in (0, 1, 60, 100):  # up to the limit all are kept
        assert items.at(np.arange(n_items)).thinned().share == 0.5


def test_upgrade_keeps_items_with_ids_like_those_of_changed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = random_embeddings(3, DIM, seed=0)
    ids = ["ab", "abc", "xab"]
    items = [replace(one, id=name) for one, name in zip(new_items(3), ids, strict=True)]
    rows = list(zip(items, embeddings.mean, embeddings.variance, strict=True))
    base = SimpleNamespace(
        n_items=3, dim=DIM, ids=lambda: {*ids}, rows=lambda: iter(rows), close=lambda: None
    )
    monkeypatch.setattr(upgrade, "_Base", lambda _: base)
    manifest = Manifest({}, {"fingerprint": "e"}, None, None, (), {}, {})
    (tmp_path / "new").mkdir()
    upgrade._write_gallery(tmp_path, tmp_path / "new", manifest, {"ab": None})
    gallery = FaissGallery(tmp_path / "new")
    assert [one.id for one in gallery.items(gallery.rows())] == ["abc", "xab"]


@pytest.mark.parametrize("spoil", ["changed", "missing", "unlisted"])
def test_file_is_verified_against_its_entry_in_the_manifest(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")
    files = {"a": describe_file(path)}
    manifest = Manifest({}, {}, None, None, (), {}, files)
    verify_file(tmp_path, manifest, "a")
    if spoil == "changed":
        path.write_bytes(b"Content")
    elif spoil == "missing":
        path.unlink()
    else:
        manifest = replace(manifest, files={"ab": files["a"]})
    with pytest.raises(BundleTampered, match="a differs from its manifest"):
        verify_file(tmp_path, manifest, "a")


def test_changes_are_read_beside_the_gallery_that_is_open(tmp_path: Path) -> None:
    root = published(tmp_path, random_embeddings(5, DIM, seed=0), new_items(5))
    base = FaissGallery(locate(root))
    assert open_live(root, locate(root), base)._base is base
