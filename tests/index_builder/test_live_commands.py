"""`vouch-build items`, `compact`, `backup` and `restore`."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from index_builder.commands.app import app
from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import activate, bundle_ids, current_id, locate
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.manifest import read_manifest
from model_store.bundles.signatures import (
    new_key,
    read_private_key,
    read_public_key,
    require_signature,
    write_signature,
)
from model_store.errors import GalleryUnavailable, ItemNotFound, UsageError, WriteRefused
from model_store.gallery.live.gallery import LiveGallery
from model_store.gallery.protocol import Receipt, Write
from model_store.sqlite import of_the_system
from tests.support.build_command import vouch_build
from tests.support.bundle_copies import copied
from tests.support.spoilt_encoders import spoil


@pytest.fixture
def root(digits_bundle: Path, tmp_path: Path) -> Path:
    copied(digits_bundle, tmp_path / "bundles" / digits_bundle.name)
    activate(tmp_path / "bundles", digits_bundle.name)
    return tmp_path / "bundles"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_from_put_to_restored(root: Path, digits_bundle: Path, tmp_path: Path) -> None:
    n_items = open_bundle(root, "cpu").retriever.gallery.n_items
    images = sorted((digits_bundle / "samples").glob("*.png"))[:2]
    known = '{"shelf": 3}'
    put = run("items", "put", root, *images, "--label", "new", "--metadata", known)
    assert put.stdout.strip() == f"2 items put, the gallery has {n_items + 2}"
    retriever = open_bundle(root, "cpu").retriever
    nearest = retriever.search(images[0].read_bytes()).matches[0]
    assert nearest.id == images[0].as_posix()
    assert (nearest.label, nearest.metadata) == ("new", {"shelf": 3})
    assert nearest.similarity == pytest.approx(1, abs=1e-6)
    for label, known_label in (("newer", "newer"), ("", None), ("new", "new")):
        labelled = run("items", "label", root, images[0].as_posix(), "--label", label)
        assert labelled.stdout.strip() == "1 items labelled"
        item = open_bundle(root, "cpu").retriever.gallery.item(images[0].as_posix())
        assert (item.label, item.metadata) == (known_label, {"shelf": 3})
    deleted = run("items", "delete", root, images[0].as_posix())
    assert deleted.stdout.strip() == f"1 items deleted, the gallery has {n_items + 1}"
    assert run("backup", root, tmp_path / "a.tar").exit_code == 0
    before = current_id(root)
    assert run("compact", root).stdout.strip() == str(root / str(current_id(root)))
    assert current_id(root) != before
    assert retriever.n_new_labels == 1
    assert open_bundle(root, "cpu").retriever.n_new_labels == 0, "it was learned"
    assert run("compact", root).stdout.strip() == f"{current_id(root)} has no changes"
    assert len(bundle_ids(root)) == 2
    for place in (root, tmp_path / "again"):
        if place != root:
            restored = run("restore", tmp_path / "a.tar", place)
            assert restored.stdout.strip() == f"bundle {before}, {n_items + 1} items, 6 changes"
        gallery = open_bundle(place, "cpu").retriever.gallery
        assert gallery.n_items == n_items + 1
        assert gallery.item(images[1].as_posix()).label == "new"
        with pytest.raises(ItemNotFound):
            gallery.item(images[0].as_posix())


@pytest.mark.parametrize("n_finished", [0, 1, 2])
def test_an_error_says_how_many_images_were_put_before(
    root: Path, digits_bundle: Path, monkeypatch: pytest.MonkeyPatch, n_finished: int
) -> None:
    n_items = open_bundle(root, "cpu").retriever.gallery.n_items
    images = sorted((digits_bundle / "samples").glob("*.png"))[:5]
    n_commits, commit = itertools.count(), LiveGallery.commit

    def on_a_full_disk(live: LiveGallery, writes: Sequence[Write]) -> Receipt:
        if next(n_commits) == n_finished:
            raise of_the_system(OSError(errno.ENOSPC, "it is full"))
        return commit(live, writes)

    monkeypatch.setattr(LiveGallery, "commit", on_a_full_disk)
    monkeypatch.setattr("index_builder.commands.live.PUT_TOGETHER", 2)
    done = vouch_build("items", "put", str(root), *map(str, images), cwd=root)
    assert (done.returncode, done.stdout) == (1, "")
    assert open_bundle(root, "cpu").retriever.gallery.n_items == n_items + 2 * n_finished
    first = "error: There is no room on the disk to store the change. Nothing was changed."
    if n_finished:
        first = (
            f"error: {2 * n_finished} of 5 images were put before an error: There is no room on "
            "the disk to store the change. The other images were not put."
        )
    assert done.stderr.startswith(first)
    assert done.stderr.count("There is no room") == 1


def test_an_error_of_a_database_says_how_many_images_were_put_before(
    root: Path, digits_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = sorted((digits_bundle / "samples").glob("*.png"))[:3]
    commit = LiveGallery.commit

    def unavailable(live: LiveGallery, writes: Sequence[Write]) -> Receipt:
        if len(writes) < 2:
            raise GalleryUnavailable("The database does not answer.")
        return commit(live, writes)

    monkeypatch.setattr(LiveGallery, "commit", unavailable)
    monkeypatch.setattr("index_builder.commands.live.PUT_TOGETHER", 2)
    done = vouch_build("items", "put", str(root), *map(str, images), cwd=root)
    assert done.returncode == 1
    assert done.stderr == (
        "error: The database does not answer.\n2 of 3 images were put before this error.\n"
    )


def test_an_empty_id_is_refused(root: Path, digits_bundle: Path) -> None:
    image = min((digits_bundle / "samples").glob("*.png"))
    refused = vouch_build("items", "put", str(root), str(image), "--id", "", cwd=root)
    assert refused.returncode == 2
    assert "The id must have 1 to 1,024 characters, not 0. Name another with --id." in (
        refused.stderr
    )


def test_picture_without_an_embedding_is_named_and_the_others_are_put(
    root: Path, digits_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = sorted((digits_bundle / "samples").glob("*.png"))[:2]
    n_encoded = itertools.count()
    spoil(monkeypatch, lambda _: next(n_encoded) == 0)
    put = run("items", "put", root, *images)
    assert put.exit_code == 1
    assert put.stdout.startswith("1 items put")
    assert f"{images[0]}: For this input, the encoder gives numbers that are not" in put.stderr


def test_backup_contains_the_created_galleries(root: Path, tmp_path: Path) -> None:
    folder = GalleryFolder(root / "galleries", most=2)
    like = locate(root), read_manifest(locate(root))
    for name in ("shelf", "loans"):
        folder.create(name, like)
    folder.rename("shelf", "books")
    taken = run("backup", root, tmp_path / "a.tar")
    assert taken.exit_code == 0
    own, *others = taken.stdout.splitlines()
    assert own.startswith(f"bundle {current_id(root)}, ")
    assert [line.partition(":")[0] for line in others] == [
        f"galleries/{one.id}" for one in folder.entries()
    ]
    assert run("restore", tmp_path / "a.tar", tmp_path / "again").stdout == taken.stdout
    again = GalleryFolder(tmp_path / "again" / "galleries", most=2)
    assert again.entries() == folder.entries()
    roots = [tmp_path / "again", *map(again.root, again.entries())]
    encoders = {(locate(one) / "encoder.onnx").stat().st_ino for one in roots}
    assert len(encoders) == 1  # a thousand galleries do not store their encoder a thousand times
    assert run("backup", again.path, tmp_path / "b.tar").exit_code == 0
    assert run("doctor", again.path).exit_code == 0


@pytest.mark.parametrize("keys_are_set", [True, False])
def test_compaction_that_cannot_sign_publishes_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keys_are_set: bool
) -> None:
    """Services that require signatures would not open the new bundle."""
    before, key = locate(root), tmp_path / "publisher.key"
    public = new_key(key)
    write_signature(before, read_manifest(before), read_private_key(key))
    if keys_are_set:
        monkeypatch.setenv("VOUCH_BUNDLE_KEYS", str(public))
    put = run("items", "put", root, before / "samples" / "1.png", "--id", "new")
    assert put.exit_code == 0
    refused = run("compact", root)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, WriteRefused)
    assert "Set VOUCH_SIGNING_KEY" in str(refused.exception)
    assert bundle_ids(root) == [before.name]
    monkeypatch.setenv("VOUCH_SIGNING_KEY", str(key))
    assert run("compact", root).exit_code == 0
    assert locate(root) != before
    require_signature(locate(root), read_manifest(locate(root)), {read_public_key(public)})


def test_a_bad_image_is_named_and_harms_no_other(
    root: Path, digits_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    good = digits_bundle / "samples" / "1.png"
    result = run("items", "put", root, tmp_path / "bad.png", good)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()  # however long the path
    assert line.startswith(f"{tmp_path / 'bad.png'}: ")
    assert open_bundle(root, "cpu").retriever.gallery.item(good.as_posix()).label is None


def test_image_whose_path_is_no_id_is_named(root: Path, digits_bundle: Path) -> None:
    good = digits_bundle / "samples" / "1.png"
    bad = digits_bundle / "samples" / ".." / "samples" / "1.png"
    result = run("items", "put", root, bad, good)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(f"{bad}: The id must not have '.' or '..'")
    assert "Name another with --id." in line


def test_what_cannot_be_is_said(root: Path, digits_bundle: Path) -> None:
    sample = digits_bundle / "samples" / "1.png"
    for arguments, said in (
        (("--id", "x", sample, sample), "--id needs a single image"),
        (("--metadata", "[1]", sample), "JSON object"),
        (("--metadata", "{", sample), "not JSON"),
        (("--metadata", '{"a": "\\ud800"}', sample), "no unpaired surrogate"),
        (("--metadata", os.fsdecode(b'{"a": "F\xfcchse"}'), sample), "and UTF-8"),
        (("--metadata", '{"a": NaN}', sample), "no NaN"),
        (("--metadata", '{"a": 1e999}', sample), "no infinity"),
        (("--metadata", "[" * 9999, sample), "not JSON"),
        (("--label", os.fsdecode(b"F\xfcchse"), sample), "The label must not have"),
        (("--label", "x" * 201, sample), "The label must have at most 200 characters, not 201"),
    ):
        result = run("items", "put", root, *arguments)
        assert isinstance(result.exception, UsageError)
        assert said in str(result.exception)
    assert isinstance(run("items", "delete", root, "nobody").exception, ItemNotFound)
    missing = run("items", "label", root, "nobody", "--label", "new")
    assert isinstance(missing.exception, ItemNotFound)
    for label in ("a\nb", "x" * 201):
        refused = run("items", "label", root, "nobody", "--label", label)
        assert isinstance(refused.exception, UsageError)


def test_an_error_is_one_line_however_long(tmp_path: Path) -> None:
    missing = tmp_path / "a-directory-that-is-not-there" / ("x" * 100)
    done = vouch_build("items", "delete", str(missing), "an-item", cwd=tmp_path)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(missing) in line
