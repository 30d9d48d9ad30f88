"""Galleries that are created, renamed and dropped, whatever is met meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles import manifest as manifests
from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import locate
from model_store.bundles.galleries import GalleryEntry, GalleryFolder
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.bundles.retention import Hold
from model_store.errors import (
    BundleTampered,
    GalleryExists,
    GalleryNotFound,
    InvalidRequest,
    WriteRefused,
)
from model_store.gallery import FaissGallery, NewItem, read_filter, write_faiss_gallery
from model_store.messages import message
from model_store.retriever import Retriever
from tests.laws.gallery_laws import random_embeddings
from tests.support.bundle_copies import flip_a_byte
from tests.support.fakes import FakeEncoder
from tests.support.live_bundles import DIM, upsert

ENCODER = FakeEncoder(DIM)


@pytest.fixture
def like(tmp_path: Path) -> tuple[Path, Manifest]:
    """A bundle with an encoder, and items."""
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "encoder.onnx").write_bytes(b"an encoder")
    write_faiss_gallery(staging, random_embeddings(3, DIM, 0), _items(3), ENCODER.fingerprint)
    manifest = Manifest(
        gallery={"name": "built", "description": "", "n_items": 3},
        encoder={
            "fingerprint": ENCODER.fingerprint,
            "dim": DIM,
            "n_features": ENCODER.n_features,
            "text": {"fingerprint": "", "calibration": {"n_queries": 9}},
        },
        calibration={"n_queries": 9},
        metrics={"recall": 1.0},
        samples=(),
        library_versions={},
    )
    directory = publish(staging, manifest, tmp_path / "bundles")
    return directory, read_manifest(directory)


def _items(n: int) -> list[NewItem]:
    return [upsert(f"item {i}", i).item for i in range(n)]


@pytest.fixture
def folder(tmp_path: Path) -> GalleryFolder:
    return GalleryFolder(tmp_path / "galleries", most=3)


def test_it_is_an_honest_bundle_with_the_same_encoder(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    made = folder.create("shoes", like, "Shoes", "Of this season")
    assert folder.find("shoes") == made
    assert (made.title, made.description) == ("Shoes", "Of this season")
    directory = locate(folder.root(made))
    manifest = read_manifest(directory)
    assert manifest.gallery["name"] == "shoes"
    assert manifest.calibration is None
    assert manifest.metrics is None
    assert manifest.encoder["text"]["calibration"] is None
    assert (directory / "encoder.onnx").samefile(like[0] / "encoder.onnx")


def test_query_of_an_empty_gallery_has_no_match(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    root = folder.root(folder.create("shoes", like))
    retriever = Retriever(ENCODER, FaissGallery(locate(root)), None)
    images = np.zeros((1, 5, 5, 3), dtype=np.uint8)
    answer = retriever.find(retriever.embed(images)[0], limit=3)
    assert (answer.matches, answer.decision.verdict) == ((), "no_match")
    assert (answer.decision.reason, answer.decision.no_match_probability) == (
        message("gallery_empty"),
        1.0,
    )
    assert answer.decision.match_probabilities is None


def test_it_takes_changes_and_is_compacted_with_the_one_encoder(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    root = folder.root(folder.create("shoes", like))
    live = open_live(root, locate(root))
    live.commit([upsert("one", 1), upsert("two", 2)])
    either = read_filter('{"or": [{"id": "one"}, {"year": {"gte": 2000}}]}')
    assert live.snapshot().matching(either).share == 0.5
    with Compaction(root, read_manifest(locate(root)), live) as compaction:
        compaction.prepare()
        compaction.switch()
    compacted = locate(root)
    assert FaissGallery(compacted).n_items == 2
    assert read_manifest(compacted).gallery["compacted_from"]
    assert (compacted / "encoder.onnx").samefile(like[0] / "encoder.onnx")


def test_where_nothing_can_be_linked_across_there_is_one_copy_for_all(
    folder: GalleryFolder, like: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, outside = os.link, like[0]

    def on_one_file_system(source: Path, target: Path) -> None:
        if Path(source).is_relative_to(outside):
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", on_one_file_system)
    roots = [folder.root(folder.create(name, like)) for name in ("one", "two")]
    files = [locate(root) / "encoder.onnx" for root in roots]
    assert files[0].samefile(files[1])
    assert not files[0].samefile(outside / "encoder.onnx")
    for name in ("one", "two"):
        folder.drop(name)
    assert len(folder.remove_nameless()) == 2
    assert list((folder.path / ".shared").iterdir()) == []


def test_two_of_one_name_are_never_one_bundle(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    first = folder.create("shoes", like)
    folder.drop("shoes")
    second = folder.create("shoes", like)
    ids = {locate(folder.root(entry)).name for entry in (first, second)}
    assert len(ids) == 2


def test_a_name_is_changed_and_everything_stays_where_it_is(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    made = folder.create("shoes", like, "Shoes")
    renamed = folder.rename("shoes", "boots")
    assert (renamed.id, renamed.name, renamed.title) == (made.id, "boots", "Shoes")
    assert folder.find("shoes") is None
    other = GalleryFolder(folder.path, most=3)  # another process
    assert other.find("boots") == renamed
    assert folder.describe("boots", description="High").title == "Shoes"
    found = other.find("boots")
    assert found is not None
    assert (found.title, found.description) == ("Shoes", "High")
    assert [entry.name for entry in other.entries()] == ["boots"]


def test_what_was_dropped_is_removed_once_nobody_uses_it(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    made = folder.create("shoes", like)
    root = folder.root(made)
    with Hold(locate(root)):
        folder.drop("shoes")
        assert folder.find("shoes") is None
        assert folder.remove_nameless() == []
        assert root.exists()
    assert folder.remove_nameless() == [made.id]
    assert not root.exists()


@pytest.mark.parametrize("name", ["shoes2", "my-shoes", "shoe"])
def test_gallery_is_renamed_to_a_neighbour_of_its_name(
    folder: GalleryFolder, like: tuple[Path, Manifest], name: str
) -> None:
    folder.create("shoes", like)
    assert folder.rename("shoes", "shoes").name == "shoes"
    folder.rename("shoes", name)
    assert [entry.name for entry in folder.entries()] == [name]


@pytest.mark.parametrize("end", ["0", "/..", ""])
def test_root_of_a_gallery_needs_a_whole_id(
    folder: GalleryFolder, like: tuple[Path, Manifest], end: str
) -> None:
    made = folder.create("shoes", like)
    if not end:
        assert folder.root(made).parent == folder.path
        return
    with pytest.raises(GalleryNotFound, match="no directory of bundles"):
        folder.root(replace(made, id=f"{made.id}{end}"))


@pytest.mark.parametrize(
    ("name", "is_left"),
    [
        ("0123456789abcdef", False),
        ("0123456789abcdef0", True),
        ("x0123456789abcdef", True),
        (".0123456789abcdef.partial", False),
        (".0123456789abcdef.staging", False),
        (".0123456789abcdef.partial2", True),
        (".0123456789abcdef", True),
    ],
)
def test_remove_nameless_leaves_folders_with_longer_names(
    folder: GalleryFolder, like: tuple[Path, Manifest], name: str, is_left: bool
) -> None:
    made = folder.create("shoes", like)
    (folder.path / name).mkdir()
    folder.remove_nameless()
    assert (folder.path / name).exists() is is_left
    assert folder.root(made).exists()


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", ".hidden", "Shoes", "a" * 65, "ä", "x\n", "a b"]
)
def test_nothing_is_called_what_could_lead_elsewhere(
    folder: GalleryFolder, like: tuple[Path, Manifest], name: str
) -> None:
    assert folder.find(name) is None
    with pytest.raises(InvalidRequest, match="lower-case"):
        folder.create(name, like)
    folder.create("shoes", like)
    with pytest.raises(InvalidRequest):
        folder.rename("shoes", name)
    for change in (folder.drop, folder.describe):
        with pytest.raises(GalleryNotFound):
            change(name)


def test_names_are_taken_once_and_there_are_so_many(
    folder: GalleryFolder, like: tuple[Path, Manifest]
) -> None:
    for name in ("one", "two", "three"):
        folder.create(name, like)
    with pytest.raises(GalleryExists, match="'one'"):
        folder.create("one", like)
    with pytest.raises(GalleryExists):
        folder.rename("one", "two")
    with pytest.raises(WriteRefused, match="3 galleries"):
        folder.create("four", like)
    folder.drop("one")
    folder.create("four", like)


class Killed(BaseException):
    """The process ends here: nothing that follows is done, clean-up neither."""


Change = Callable[[GalleryFolder, tuple[Path, Manifest]], GalleryEntry]


@pytest.mark.parametrize(
    ("change", "possible"),
    [
        (lambda folder, like: folder.create("new", like), [["old"], ["new", "old"]]),
        (lambda folder, _: folder.rename("old", "new"), [["old"], ["new"]]),
        (lambda folder, _: folder.drop("old"), [["old"], []]),
        (lambda folder, _: folder.describe("old", "x"), [["old"]]),
    ],
    ids=["create", "rename", "drop", "describe"],
)
def test_a_crash_at_any_moment_leaves_galleries_that_open(
    folder: GalleryFolder,
    like: tuple[Path, Manifest],
    change: Change,
    possible: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends before its n-th call that changes the disk, for every n."""
    folder.create("old", like)
    kept = folder.path.with_name("kept")
    shutil.copytree(folder.path, kept)
    outcomes, n = [], 0
    while True:
        shutil.rmtree(folder.path)
        shutil.copytree(kept, folder.path)
        with monkeypatch.context() as patch:
            ends = _ends_before(n, patch)
            with suppress(Killed):
                change(GalleryFolder(folder.path, most=3), like)
            ended = ends()
        after = GalleryFolder(folder.path, most=3)
        names = [entry.name for entry in after.entries()]
        outcomes.append(names)
        for entry in after.entries():
            read_manifest(locate(after.root(entry)))
        after.remove_nameless()
        left = [path for path in folder.path.iterdir() if len(path.name.strip(".")) >= 16]
        assert len(left) == len(names)
        if not ended:
            break
        n += 1
    assert n > 0
    assert all(names in possible for names in outcomes)
    assert outcomes[-1] == possible[-1]


def _ends_before(n: int, patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let the process end before its call number ``n``; tells whether it came that far."""
    calls = [0]

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            if calls[0] >= n:
                calls[0] = n + 1  # nor does anything clean up behind it
                raise Killed
            calls[0] += 1
            return function(*arguments, **options)

        return called

    for place, name in (
        (Path, "rename"),
        (Path, "replace"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (os, "link"),
        (shutil, "rmtree"),
    ):
        patch.setattr(place, name, dying(getattr(place, name)))
    return lambda: calls[0] > n


def test_a_file_of_many_names_is_hashed_once_and_again_when_it_was_touched(
    folder: GalleryFolder, like: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = [locate(folder.root(folder.create(name, like))) for name in ("one", "two")]
    encoder = directories[0] / "encoder.onnx"
    long_ago = encoder.stat().st_mtime - 60
    os.utime(encoder, (long_ago, long_ago))
    hashed: list[Path] = []
    describe = manifests.describe_file

    def noting(path: Path) -> dict[str, object]:
        hashed.append(path)
        return describe(path)

    monkeypatch.setattr(manifests, "describe_file", noting)
    for directory in directories:
        read_manifest(directory)
    assert [path.name for path in hashed].count("encoder.onnx") == 1
    flip_a_byte(encoder)
    with pytest.raises(BundleTampered, match=r"encoder\.onnx"):
        read_manifest(directories[1])
