"""Directories that may only be read, by permissions that the kernel holds real processes to."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from model_store.bundles.directory import activate, locate
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.manifest import read_manifest
from model_store.feedback import FeedbackLog
from tests.end_to_end.forked import BUILD, completed
from tests.end_to_end.processes import UNPRIVILEGED, Service, environment

OTHER_USER = 65534
GALLERY = "/v1/galleries/digits"


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take the right to write away from a folder and all that is in it."""
    paths = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(modes[path] & ~0o222)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(modes[path])


@pytest.fixture
def root(tmp_path: Path, digits_bundle: Path) -> Path:
    shutil.copytree(digits_bundle, tmp_path / "bundles" / digits_bundle.name)
    activate(tmp_path / "bundles", digits_bundle.name)
    return tmp_path / "bundles"


def put(service: Service, item_id: str, image: bytes) -> httpx2.Response:
    return service.http.put(f"{GALLERY}/items/{item_id}", files={"image": ("i", image)})


def nearest(service: Service, image: bytes) -> str:
    return str(service.answer(image, limit=1)["results"][0]["id"])


def test_a_gallery_that_can_only_be_read_is_searched_and_says_why_it_is_not_written_to(
    root: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    with Service(root, tmp_path / "first.log", command=UNPRIVILEGED) as service:
        with read_only(root):
            before = nearest(service, samples[0])
            refused = put(service, "mine", samples[0])
            assert (refused.status_code, refused.json()["code"]) == (409, "write_refused")
            assert "can only be read" in refused.json()["detail"]
            assert nearest(service, samples[0]) == before
        assert put(service, "mine", samples[0]).status_code == 200
    with ExitStack() as stack:
        with read_only(root):  # with changes that are there already
            started = Service(root, tmp_path / "second.log", command=UNPRIVILEGED)
            service = stack.enter_context(started)
            for item_id in ("mine", "another"):
                assert put(service, item_id, samples[1]).status_code == 409
            assert service.http.delete(f"{GALLERY}/items/mine").status_code == 409
            assert nearest(service, samples[0]) == "mine"
        assert put(service, "another", samples[1]).status_code == 200
        assert [nearest(service, sample) for sample in samples[:2]] == ["mine", "another"]


def test_bundle_that_cannot_be_read_is_one_line(root: Path, tmp_path: Path) -> None:
    for path in (locate(root) / "manifest.json", locate(root) / "gallery.faiss", locate(root)):
        mode = path.stat().st_mode
        path.chmod(0)
        refused = completed(["--bundle", str(root)], environment(), unprivileged=True)
        path.chmod(mode)
        assert refused.returncode == 1
        (line,) = [one for one in refused.stderr.splitlines() if not one.startswith("{")]
        assert str(locate(root)) in line
        assert line.endswith(" cannot be used: Permission denied.")


def test_file_of_feedback_that_can_only_be_read_is_refused(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "reviews" / "feedback.sqlite3"
    FeedbackLog(file).check()
    options = ["--bundle", str(root), "--feedback", str(file)]
    with read_only(file.parent):
        refused = completed(options, environment(), unprivileged=True)
    assert refused.returncode == 1
    assert f"VOUCH_FEEDBACK: {file} cannot be used (attempt to write" in refused.stderr


def test_files_that_root_makes_have_the_owner_of_their_directory(
    root: Path, tmp_path: Path, digits_bundle: Path
) -> None:
    """A service of that user could not write another's, and lost its writes after an upgrade."""
    for path in (tmp_path, root, *root.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    sample = str(digits_bundle / "samples" / "1.png")
    archive = str(tmp_path / "a.tar")
    for command in (
        ["items", "put", str(root), sample],
        ["compact", str(root)],
        ["items", "put", str(root), sample, "--id", "again"],
        ["rollback", str(root)],
        ["backup", str(root), archive],
        ["restore", archive, str(tmp_path / "restored")],
        ["items", "put", str(tmp_path / "restored"), sample, "--id", "again"],
    ):
        done = completed(command, environment(), module=BUILD)
        assert done.returncode == 0, done.stderr
    made = [*root.rglob("*"), tmp_path / "restored", *(tmp_path / "restored").rglob("*")]
    assert [path for path in made if path.stat().st_uid != OTHER_USER] == []
    galleries = GalleryFolder(root / "galleries", most=2)
    for name in ("hats", "shoes"):
        galleries.create(name, (locate(root), read_manifest(locate(root))))
    for command in (
        ["backup", str(root), str(tmp_path / "b.tar")],
        ["restore", str(tmp_path / "b.tar"), str(tmp_path / "linked")],
    ):
        done = completed(command, environment(), module=BUILD)
        assert done.returncode == 0, done.stderr
    linked = [*(tmp_path / "linked").rglob("*.onnx")]
    assert {path.stat().st_uid for path in linked} == {OTHER_USER}
    assert max(path.stat().st_nlink for path in linked) > 1


def index(source: Path, encoder: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    options = ["--encoder", str(encoder), "--name", "few", "--workers", "1", "--provider", "cpu"]
    places = ["--run", str(folder / "run"), "--bundles", str(folder / "bundles")]
    command = ["index", str(source), *options, *places]
    return completed(command, environment(), module=BUILD, unprivileged=True)


def assert_refused(done: subprocess.CompletedProcess[str], what: str) -> None:
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert f"Cannot write {what}" in said
    assert "Permission denied" in said
    assert "run the same command again" in said
    assert "Traceback" not in said


def test_an_index_that_cannot_be_written_is_said_and_nothing_is_lost(
    tmp_path: Path, digits_bundle: Path, samples: list[bytes]
) -> None:
    source, out = tmp_path / "images", tmp_path / "out"
    for folder in (source, out, out / "bundles"):
        folder.mkdir()
    for number, image in enumerate(samples[1:]):
        (source / f"{number}.png").write_bytes(image)
    with read_only(out):
        assert_refused(index(source, digits_bundle, out), "into the directory of bundles")
    out.chmod(0o555)
    assert_refused(index(source, digits_bundle, out), "the run directory")
    out.chmod(0o755)
    assert list(out.rglob("*")) == [out / "bundles"]
    done = index(source, digits_bundle, out)
    assert done.returncode == 0, done.stderr
    published = locate(out / "bundles")

    (source / "another.png").write_bytes(samples[0])
    with read_only(out):
        assert_refused(index(source, digits_bundle, out), "into the directory of bundles")
    assert locate(out / "bundles") == published
    read_manifest(published)  # verifies every byte
    done = index(source, digits_bundle, out)
    assert done.returncode == 0, done.stderr
    n_items = read_manifest(locate(out / "bundles")).gallery["n_items"]
    assert n_items == read_manifest(published).gallery["n_items"] + 1
