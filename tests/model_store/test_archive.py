"""Backups: taken while written to, restored whole or not at all."""

from __future__ import annotations

import errno
import gzip
import json
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles.backup import (
    SUMMARY_FILE,
    BackupSummary,
    Summaries,
    _add_file,
    back_up,
    restore,
)
from model_store.bundles.changes import changes_path
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import (
    CURRENT_FILE,
    OPERATOR_FILE,
    change_operator,
    current_id,
    locate,
    read_operator,
)
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.manifest import read_manifest
from model_store.bundles.retention import Hold, remove_leftovers
from model_store.errors import ArchiveError, BundleTampered, VouchError, WriteRefused
from model_store.gallery import (
    Delete,
)
from model_store.sqlite import connect
from tests.support.bundle_copies import flip_a_byte
from tests.support.killing import killed_at
from tests.support.live_bundles import opened, upsert
from tests.torture.small_galleries import (
    N_ITEMS,
    contents,
    everything,
    members,
    rewritten,
    small_gallery,
)

N, DIM = 12, 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_gallery(tmp_path)


def test_what_was_backed_up_is_restored(root: Path, tmp_path: Path) -> None:
    live = opened(root)
    live.commit([upsert("new", 1), Delete(live.snapshot().items(np.array([2]))[0].id)])
    before = contents(live)
    made = back_up(root, tmp_path / "a.tar")
    live.commit([upsert("later", 2)])
    shutil.rmtree(root)
    assert (
        restore(tmp_path / "a.tar", root)
        == made
        == {".": BackupSummary(str(current_id(root)), N_ITEMS, 2, made["."].log_sha256)}
    )
    again = opened(root)
    assert contents(again) == before
    again.commit([upsert("on", 3)])
    assert again.snapshot().version == 3


def test_a_gallery_without_changes_too(root: Path, tmp_path: Path) -> None:
    made = back_up(root, tmp_path / "a.tar")
    assert (made["."].version, made["."].log_sha256) == (0, None)
    restore(tmp_path / "a.tar", tmp_path / "new" / "bundles")
    assert contents(opened(tmp_path / "new" / "bundles")) == contents(opened(root))


def test_adopted_share_of_absent_queries_is_restored(root: Path, tmp_path: Path) -> None:
    back_up(root, tmp_path / "without.tar")
    restore(tmp_path / "without.tar", tmp_path / "without")
    assert not (tmp_path / "without" / OPERATOR_FILE).exists()
    written = change_operator(root, lambda now: now.with_share(0.3).acknowledged())
    back_up(root, tmp_path / "a.tar")
    restore(tmp_path / "a.tar", tmp_path / "new")
    assert read_operator(tmp_path / "new") == written


@pytest.mark.parametrize("content", ["", '{"absent_share": 2}', "[" * 60_000, " " * 70_000])
def test_archive_with_damaged_settings_of_the_operator_is_refused(
    root: Path, tmp_path: Path, content: str
) -> None:
    back_up(root, tmp_path / "a.tar")
    rewritten(tmp_path / "a.tar", tmp_path / "bad.tar", {OPERATOR_FILE: content})
    with pytest.raises(ArchiveError, match=r"settings of the operator are damaged|'OPERATOR'"):
        restore(tmp_path / "bad.tar", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_bundle_is_not_backed_up_without_its_live_changes(root: Path, tmp_path: Path) -> None:
    opened(root).commit([upsert("new", 1)])
    with pytest.raises(WriteRefused, match="Name the directory of bundles"):
        back_up(root / str(current_id(root)), tmp_path / "a.tar")
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize("folder", [".", "samples"])
def test_archive_is_not_written_into_a_bundle(root: Path, folder: str) -> None:
    bundle = root / str(current_id(root))
    before = everything(bundle)
    with pytest.raises(ArchiveError, match=f"is in the bundle {bundle.name}"):
        back_up(root, bundle / folder / "a.tar")
    assert everything(bundle) == before


def test_it_is_restored_to_where_one_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = back_up(root, tmp_path / "a.tar")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert restore(Path("../a.tar"), Path()) == made
    assert current_id(Path.cwd()) == made["."].bundle_id
    assert not list(Path().glob("*restoring*"))


def test_two_are_made_at_once_under_one_name(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has begun to write when the second begins, and fails when that has ended."""
    live, archive = opened(root), tmp_path / "a.tar"
    made: list[Summaries | None] = []

    def adding(tar: tarfile.TarFile, name: str, data: bytes) -> None:
        if not made:
            live.commit([upsert("new", 1)])
            made.append(None)
            made[0] = back_up(root, archive)
            _add_file(tar, name, data)
            raise OSError(errno.ENOSPC, "No space left on device")
        _add_file(tar, name, data)

    monkeypatch.setattr("model_store.bundles.backup._add_file", adding)
    with pytest.raises(ArchiveError, match="No space left"):
        back_up(root, archive)
    assert [restore(archive, tmp_path / "restored")] == made


def test_full_disk_is_no_damaged_log(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(root).commit([upsert("new", 1)])

    def full(path: Path, mode: str) -> sqlite3.Connection:
        connection = connect(path, mode)
        connection.execute("PRAGMA max_page_count = 2")
        return connection

    monkeypatch.setattr("model_store.gallery.live.log.connect", full)
    with pytest.raises(ArchiveError, match=r"a\.tar cannot be written: No space left"):
        back_up(root, tmp_path / "a.tar")
    assert not list(tmp_path.glob("*.tar"))


def test_one_that_was_made_meanwhile_is_not_overwritten(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "a.tar"
    monkeypatch.setattr("model_store.bundles.backup.flush", lambda _: archive.write_text("other"))
    with pytest.raises(ArchiveError, match="exists already"):
        back_up(root, archive)
    assert archive.read_text() == "other"


def test_a_compacted_one_goes_on_counting(root: Path, tmp_path: Path) -> None:
    live = opened(root)
    live.commit([upsert("new", 1)])
    with Compaction(root, read_manifest(root / str(current_id(root))), live) as compaction:
        compaction.prepare()
        compaction.switch()
    assert back_up(root, tmp_path / "a.tar")["."].version == 1
    restore(tmp_path / "a.tar", tmp_path / "again")
    assert contents(opened(tmp_path / "again")) == contents(opened(root))


def test_it_is_of_one_moment_whatever_is_written_meanwhile(root: Path, tmp_path: Path) -> None:
    """Pairs are written at once, so a backup holds both of a pair, and all pairs before."""
    live, over = opened(root), threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            live.commit([upsert(f"left-{number}", number), upsert(f"right-{number}", number)])
            number += 1

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            versions = [back_up(root, tmp_path / f"{i}.tar")["."].version for i in range(3)]
        finally:
            over.set()
        writing.result()
    assert versions == sorted(versions)
    for number, version in enumerate(versions):
        restore(tmp_path / f"{number}.tar", tmp_path / str(number))
        now = opened(tmp_path / str(number)).snapshot()
        assert now.version == version
        assert version % 2 == 0
        assert now.n_items == N_ITEMS + version
        for pair in range(version // 2):
            assert now.item(f"left-{pair}").metadata == now.item(f"right-{pair}").metadata


def test_nothing_is_overwritten(root: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    back_up(root, archive)
    before = archive.read_bytes()
    with pytest.raises(ArchiveError, match="exists already"):
        back_up(root, archive)
    assert archive.read_bytes() == before
    with pytest.raises(ArchiveError, match="exists already"):
        restore(archive, root)
    (tmp_path / "file").write_bytes(b"of the operator")
    with pytest.raises(ArchiveError, match="exists already"):
        restore(archive, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"of the operator"
    (tmp_path / "empty").mkdir()
    restore(archive, tmp_path / "empty")


def damaged_archive(archive: Path, name: str) -> None:
    """Flip a byte of one of its members."""
    with tarfile.open(archive) as tar:
        member = tar.getmember(name)
        at = member.offset_data + member.size // 2
    content = bytearray(archive.read_bytes())
    content[at] ^= 1
    archive.write_bytes(content)


def test_a_damaged_one_is_refused_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    opened(root).commit([upsert("new", 1)])
    new = tmp_path / "restored"
    for name, error in (
        ("bundle/norms.npy", BundleTampered),
        ("changes.sqlite", ArchiveError),
    ):
        archive = tmp_path / f"{error.__name__}.tar"
        back_up(root, archive)
        damaged_archive(archive, name)
        with pytest.raises(error):
            restore(archive, new)
    (tmp_path / "cut.tar").write_bytes(archive.read_bytes()[:5000])
    (tmp_path / "no.tar").write_bytes(b"no archive")
    for name in ("cut.tar", "no.tar", "missing.tar"):
        with pytest.raises(ArchiveError):
            restore(tmp_path / name, new)
    assert not new.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("at_once", [1, 3, 10_000])
def test_gallery_with_an_id_that_breaks_the_rule_is_not_restored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("model_store.bundles.backup._ITEMS_AT_ONCE", at_once)
    live = opened(root)
    live.commit([upsert("z/good", 1)])
    back_up(root, tmp_path / "good.tar")
    live.commit([upsert("z/../bad", 1)])
    back_up(root, tmp_path / "bad.tar")
    restore(tmp_path / "good.tar", tmp_path / "good")
    with pytest.raises(ArchiveError, match=r"the id 'z/\.\./bad' must not have"):
        restore(tmp_path / "bad.tar", tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_a_log_that_was_left_out_is_missed(root: Path, tmp_path: Path) -> None:
    opened(root).commit([upsert("new", 1)])
    back_up(root, tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as tar, tarfile.open(tmp_path / "b.tar", "w") as less:
        for member in tar.getmembers():
            if member.name != "changes.sqlite":
                less.addfile(member, tar.extractfile(member) if member.isfile() else None)
    with pytest.raises(ArchiveError):
        restore(tmp_path / "b.tar", tmp_path / "restored")


def test_a_damaged_bundle_is_not_backed_up(root: Path, tmp_path: Path) -> None:
    flip_a_byte(root / str(current_id(root)) / "norms.npy")
    with pytest.raises(BundleTampered):
        back_up(root, tmp_path / "a.tar")
    assert not list(tmp_path.glob("*.tar"))
    assert not changes_path(root, "0" * 16).exists()


class TestAMaliciousArchive:
    """Nothing is written outside the directory that was named, and nothing is left in it."""

    @pytest.fixture
    def good(self, root: Path, tmp_path: Path) -> Path:
        live = opened(root)
        live.commit([upsert("new", 1)])
        live.close()
        back_up(root, tmp_path / "good.tar")
        return tmp_path / "good.tar"

    @pytest.fixture
    def new(self, tmp_path: Path) -> Path:
        (tmp_path / "place").mkdir()
        return tmp_path / "place" / "restored"

    def refused(self, archive: Path, new: Path) -> str:
        before = everything(new.parent.parent)
        with pytest.raises(ArchiveError) as caught:
            restore(archive, new)
        assert everything(new.parent.parent) == before
        return str(caught.value)

    @pytest.mark.parametrize(
        "bundle_id",
        [
            *("/{place}/planted", "../planted", "..", ".", "", "a/b", "x" * 300, "a\0b"),
            *("0" * 15, "0" * 15 + "G", "0" * 16 + "\n", "\u0660" * 16),
            *(7, None, True, ["0" * 16], {"0" * 16: 1}),
        ],
    )
    def test_its_bundle_is_called_as_bundles_are(
        self, good: Path, new: Path, bundle_id: object
    ) -> None:
        if isinstance(bundle_id, str):
            bundle_id = bundle_id.replace("/{place}", str(new.parent))
        summary = json.loads(members(good)[SUMMARY_FILE])
        archive = good.with_name("bad.tar")
        rewritten(good, archive, {SUMMARY_FILE: json.dumps(summary | {"bundle_id": bundle_id})})
        assert "is not the id of a bundle" in self.refused(archive, new)

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("CURRENT", tarfile.REGTYPE),
            ("changes/0123456789abcdef.sqlite", tarfile.REGTYPE),
            ("bundle/link", tarfile.SYMTYPE),
            ("bundle/link", tarfile.LNKTYPE),
            ("changes", tarfile.SYMTYPE),
            ("bundle/pipe", tarfile.FIFOTYPE),
            ("bundle/../../planted", tarfile.REGTYPE),
            ("/etc/planted", tarfile.REGTYPE),
            ("bundle/\u202e\0planted", tarfile.REGTYPE),
            ("bundle/\u202e\0planted", tarfile.DIRTYPE),
        ],
    )
    def test_it_holds_what_a_backup_holds(
        self, good: Path, new: Path, name: str, kind: bytes
    ) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "manifest.json"
        archive = good.with_name("bad.tar")
        shutil.copyfile(good, archive)
        with tarfile.open(archive, "a") as tar:
            tar.addfile(member)
        self.refused(archive, new)

    def test_it_does_not_swell(self, good: Path, new: Path) -> None:
        archive = good.with_name("bad.tar.gz")
        archive.write_bytes(gzip.compress(good.read_bytes()))
        self.refused(archive, new)

    @pytest.mark.parametrize(
        "summary", ["[]", "7", "null", "", "[" * 50_000, "{}", '{"format": 1}']
    )
    def test_its_summary_is_one(self, good: Path, new: Path, summary: str) -> None:
        archive = good.with_name("bad.tar")
        rewritten(good, archive, {SUMMARY_FILE: summary})
        assert "is not a backup that Vouch made" in self.refused(archive, new)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_archive_that_needs_more_space_than_the_disk_may_give_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, fits: bool
) -> None:
    """A tenth of the free space stays free; nothing is unpacked of what does not fit."""
    archive, new = tmp_path / "a.tar", tmp_path / "new"
    made = back_up(root, archive)
    with tarfile.open(archive) as tar:
        needed = sum(member.size for member in tar)
    free = next(n for n in range(needed, 2 * needed) if n - n // 10 == needed + spare)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free))
    if fits:
        assert restore(archive, new) == made
    else:
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda *_: pytest.fail("it unpacks"))
        with pytest.raises(ArchiveError, match="Free disk space"):
            restore(archive, new)
        assert not new.exists()
    assert not list(tmp_path.glob(".*"))


def test_restore_whose_disk_fills_up_meanwhile_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, new = tmp_path / "a.tar", tmp_path / "new"
    back_up(root, archive)
    usage = shutil.disk_usage(tmp_path)
    free = iter([10**9] * 5)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=next(free, 0)))
    with pytest.raises(ArchiveError, match="Free disk space"):
        restore(archive, new)
    assert not new.exists()
    assert not list(tmp_path.glob(".*"))


def killed_and_repeated(
    archive: Path, new: Path, made: Summaries, *, step: int, is_there: bool
) -> Iterator[None]:
    """Kill a restore ever later, and repeat it, until one is not killed."""
    disk, n_calls = archive.parent, 0
    while True:
        n_calls += step
        if is_there:
            new.mkdir()
        with killed_at(disk, n_calls):
            restore(archive, new)
        if not (new / CURRENT_FILE).exists():
            assert restore(archive, new) == made
        elif not list(disk.rglob(".*restoring*")):
            break
        yield
        shutil.rmtree(new)
    assert n_calls > 10


@pytest.mark.parametrize("is_there", [True, False])
def test_restore_that_was_killed_is_repeated(root: Path, tmp_path: Path, is_there: bool) -> None:
    """Wherever it was: nothing is in the way, and nothing of the first is left."""
    opened(root).commit([upsert("new", 1)])
    change_operator(root, lambda now: now.with_share(0.3))
    disk = tmp_path / "disk"
    disk.mkdir()
    archive, new = disk / "a.tar", disk / "new"
    made = back_up(root, archive)
    for _ in killed_and_repeated(archive, new, made, step=3, is_there=is_there):
        remove_leftovers(new)
        assert {path.name for path in disk.iterdir()} == {"a.tar", "new"}
        assert {*new.iterdir()} >= {new / CURRENT_FILE, new / "changes", new / made["."].bundle_id}
        assert not list(new.glob(".restoring*"))


def test_restore_that_was_killed_at_its_end_is_complete(root: Path, tmp_path: Path) -> None:
    """Its files are in use, though the folder of the restore is left."""
    back_up(root, tmp_path / "a.tar")
    new = tmp_path / "new"
    new.mkdir()
    restore(tmp_path / "a.tar", new)
    left = new / ".restoring-00000000"
    left.mkdir()
    (left / ".moving").write_text("\n".join(path.name for path in new.iterdir()))
    before = contents(opened(new))
    with pytest.raises(ArchiveError, match="exists already"):
        restore(tmp_path / "a.tar", new)
    assert not left.exists()
    assert contents(opened(new)) == before


def test_restore_that_was_killed_leaves_what_was_put_there_since(
    root: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    (disk / "new").mkdir(parents=True)
    archive, new = disk / "a.tar", disk / "new"
    back_up(root, archive)
    n_calls = 0
    while not list(new.glob("[!.]*")):
        n_calls += 1
        with killed_at(disk, n_calls):  # until some of it is at its place
            restore(archive, new)
    (new / "notes.txt").write_text("mine")
    with pytest.raises(ArchiveError, match="exists already"):
        restore(archive, new)
    assert (new / "notes.txt").read_text() == "mine"
    assert list(new.glob("[0-9a-f]*"))


class TestCreatedGalleries:
    """A backup of a directory contains the galleries that a service created in it."""

    @pytest.fixture
    def folder(self, root: Path) -> GalleryFolder:
        """Two galleries with an item each, in a folder of the directory of bundles."""
        made, manifest = GalleryFolder(root / "galleries", most=3), read_manifest(locate(root))
        manifest = replace(manifest, encoder={**manifest.encoder, "dim": 6, "n_features": 6})
        for name in ("hats", "shoes"):
            entry = made.create(name, (locate(root), manifest), name.title())
            live = opened(made.root(entry))
            live.commit([upsert(f"{name}-1", 1)])
            live.close()
        return made

    def ids(self, root: Path) -> set[str]:
        with closing(opened(root)) as live:
            return {item.id for item in live.snapshot().items(live.snapshot().page(None, 99))}

    def test_they_are_restored_with_the_gallery_of_the_directory(
        self, root: Path, folder: GalleryFolder, tmp_path: Path
    ) -> None:
        made, new = back_up(root, tmp_path / "a.tar"), tmp_path / "new"
        assert restore(tmp_path / "a.tar", new) == made
        assert [*made] == [".", *(f"galleries/{one.id}" for one in folder.entries())]
        again = GalleryFolder(new / "galleries", most=3)
        assert again.entries() == folder.entries()
        for entry in again.entries():
            assert self.ids(again.root(entry)) == {f"{entry.name}-1"}
        assert self.ids(new) == self.ids(root)

    def test_folder_of_them_is_backed_up_alone(self, folder: GalleryFolder, tmp_path: Path) -> None:
        made = back_up(folder.path, tmp_path / "a.tar")
        assert [*made] == [one.id for one in folder.entries()]
        for new in (tmp_path / "new", tmp_path / "empty"):
            if new.name == "empty":
                new.mkdir()
            assert restore(tmp_path / "a.tar", new) == made
            assert GalleryFolder(new, most=3).entries() == folder.entries()
            assert not [*new.glob(".moving")]

    def test_dropped_gallery_is_left_out(
        self, root: Path, folder: GalleryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dropped = folder.drop("hats")
        assert f"galleries/{dropped.id}" not in back_up(root, tmp_path / "a.tar")
        meanwhile = folder.root(folder.require("shoes"))

        def hold(directory: Path) -> Hold:
            shutil.rmtree(meanwhile, ignore_errors=True)
            return Hold(directory)

        monkeypatch.setattr("model_store.bundles.backup.Hold", hold)
        assert [*back_up(root, tmp_path / "b.tar")] == ["."]
        restore(tmp_path / "b.tar", tmp_path / "new")
        assert not (tmp_path / "new" / "galleries").exists()

    def test_damaged_name_or_bundle_is_an_error_and_no_omission(
        self, root: Path, folder: GalleryFolder, tmp_path: Path
    ) -> None:
        (name,) = (folder.path / "names").glob("hats.json")
        content = name.read_bytes()
        name.write_bytes(b"{")
        with pytest.raises(ArchiveError, match=r"A file in .*names is damaged"):
            back_up(root, tmp_path / "a.tar")
        name.write_bytes(content)
        flip_a_byte(locate(folder.root(folder.require("hats"))) / "norms.npy")
        with pytest.raises(BundleTampered):
            back_up(root, tmp_path / "a.tar")
        assert not list(tmp_path.glob("*.tar"))

    @pytest.mark.parametrize(
        ("member", "content"),
        [
            ("galleries/names/hats.json", '{"id": "../../../planted"}'),
            ("galleries/names/hats.json", '{"id": "0123456789abcdef"}'),
            ("galleries/names/hats.json", "[]"),
            ("galleries/names/hats.json", "{}"),
            ("galleries/names/hats.json", " " * 70_000),
            ("galleries/names/more.json", '{"id": "0123456789abcdef"}'),
        ],
    )
    def test_archive_with_other_names_is_refused(
        self, root: Path, folder: GalleryFolder, tmp_path: Path, member: str, content: str
    ) -> None:
        assert len(folder.entries()) == 2
        back_up(root, tmp_path / "a.tar")
        rewritten(tmp_path / "a.tar", tmp_path / "bad.tar", {member: content})
        before = everything(tmp_path)
        with pytest.raises(ArchiveError):
            restore(tmp_path / "bad.tar", tmp_path / "new")
        assert everything(tmp_path) == before

    @pytest.mark.parametrize(
        "linkname",
        ["/etc/passwd", "../secret", "bundle/../../secret", "vouch-backup.json", "bundle/none"],
    )
    def test_archive_with_a_link_to_another_file_is_refused(
        self, root: Path, tmp_path: Path, linkname: str
    ) -> None:
        archive = tmp_path / "a.tar"
        back_up(root, archive)
        member = tarfile.TarInfo("bundle/link")
        member.type, member.linkname = tarfile.LNKTYPE, linkname
        with tarfile.open(archive, "a") as tar:
            tar.addfile(member)
        before = everything(tmp_path)
        with pytest.raises(VouchError):
            restore(archive, tmp_path / "new")
        assert everything(tmp_path) == before

    def test_restore_that_was_killed_is_repeated(
        self, root: Path, folder: GalleryFolder, tmp_path: Path
    ) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        archive, new = disk / "a.tar", disk / "new"
        made = back_up(root, archive)
        for _ in killed_and_repeated(archive, new, made, step=5, is_there=True):
            assert GalleryFolder(new / "galleries", most=3).entries() == folder.entries()
