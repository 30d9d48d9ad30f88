from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from model_store.bundles.bundle import open_bundle
from model_store.bundles.changes import changes_path
from model_store.bundles.directory import (
    CURRENT_FILE,
    activate,
    bundle_directory,
    current_id,
    locate,
)
from model_store.bundles.manifest import MANIFEST_FILE, Manifest, SampleQuery, read_manifest
from model_store.bundles.publish import publish
from model_store.bundles.retention import prune
from model_store.errors import (
    BundleError,
    BundleMismatch,
    BundleNotFound,
    BundleTampered,
    PointerUnreadable,
)
from model_store.files import finish, json_text


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "gallery": {"name": "g", "n_items": 2},
        "encoder": {"fingerprint": "f"},
        "calibration": None,
        "metrics": {"recall_at_1": 0.5},
        "samples": (SampleQuery("1", "samples/1.png", "a thing", belongs=True),),
        "library_versions": {"numpy": "2"},
    }
    return Manifest(**{**fields, **changes})


def staged(tmp_path: Path, name: str = "staging") -> Path:
    staging = tmp_path / name
    (staging / "samples").mkdir(parents=True)
    (staging / "encoder.onnx").write_bytes(b"weights")
    (staging / "samples" / "1.png").write_bytes(b"pixels")
    return staging


def test_published_it_reads_back(tmp_path: Path) -> None:
    bundle = publish(staged(tmp_path), manifest(), tmp_path / "root")
    read = read_manifest(bundle)
    assert read.id == bundle.name
    assert set(read.files) == {"encoder.onnx", "samples/1.png"}
    assert read.samples == manifest().samples
    assert locate(tmp_path / "root") == locate(bundle) == bundle


def test_the_same_content_has_the_same_id_and_is_kept_once(tmp_path: Path) -> None:
    first = publish(staged(tmp_path, "a"), manifest(), tmp_path / "root")
    second = publish(staged(tmp_path, "b"), manifest(), tmp_path / "root")
    assert first == second
    visible = {path.name for path in (tmp_path / "root").glob("[!.]*")}
    assert visible == {first.name, CURRENT_FILE}


def test_staging_stays_and_the_remains_of_a_crash_do_not_matter(tmp_path: Path) -> None:
    staging = staged(tmp_path)
    bundle = publish(staging, manifest(), tmp_path / "root")
    assert sorted(path.name for path in staging.iterdir()) == ["encoder.onnx", "samples"]
    shutil.rmtree(bundle)
    half = tmp_path / "root" / f".{bundle.name}.partial"
    half.mkdir()
    (half / "encoder.onnx").write_bytes(b"half of the wei")
    assert publish(staging, manifest(), tmp_path / "root") == bundle
    read_manifest(bundle)
    assert not half.exists()


def test_one_that_is_damaged_gives_way_to_the_same_bundle(tmp_path: Path) -> None:
    staging, root = staged(tmp_path), tmp_path / "root"
    bundle = publish(staging, manifest(), root)
    (bundle / "encoder.onnx").write_bytes(b"waights")
    changes_path(root, bundle.name).parent.mkdir()
    changes_path(root, bundle.name).write_bytes(b"changes")
    assert publish(staging, manifest(), root) == bundle
    read_manifest(bundle)
    assert changes_path(root, bundle.name).read_bytes() == b"changes"
    assert not list(root.glob(".*.damaged"))


def test_one_that_is_damaged_stays_where_a_full_disk_has_no_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever serves it is served on, and `CURRENT` names something."""

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    staging, root = staged(tmp_path), tmp_path / "root"
    bundle = publish(staging, manifest(), root)
    (bundle / "encoder.onnx").write_bytes(b"waights")
    monkeypatch.setattr("model_store.bundles.publish.finish", full)
    with pytest.raises(OSError, match="No space left"):
        publish(staging, manifest(), root)
    assert (locate(root) / "encoder.onnx").read_bytes() == b"waights"
    assert not list(root.glob(".*.partial"))


@pytest.mark.parametrize("there", [False, True])
def test_none_is_removed_before_it_is_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    root = tmp_path / "root"
    if there:
        publish(staged(tmp_path, "before"), manifest(), root)
    for number in range(2):
        publish(staged(tmp_path, f"{number}"), manifest(metrics={"n": number}), root)

    def activating(root: Path, bundle_id: str) -> None:
        assert bundle_id not in prune(root, 1)
        activate(root, bundle_id)

    monkeypatch.setattr("model_store.bundles.publish.activate", activating)
    bundle = publish(staged(tmp_path), manifest(), root)
    assert locate(root) == bundle


def test_two_publish_the_same_bundle_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copied = tmp_path / "root", threading.Event()

    def slowly(path: Path) -> None:
        if not copied.is_set():
            copied.set()
            time.sleep(0.3)
        finish(path)

    monkeypatch.setattr("model_store.bundles.publish.finish", slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(publish, staged(tmp_path, "a"), manifest(), root)
        copied.wait()
        second = threads.submit(publish, staged(tmp_path, "b"), manifest(), root)
        assert first.result() == second.result() == locate(root)
    read_manifest(locate(root))


@pytest.mark.parametrize("keep", [False, True])
def test_on_a_full_disk_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    copy = shutil.copyfile

    def full(path: Path | str, target: Path | str | None = None, **options: bool) -> None:
        if target is not None:
            copy(path, target, **options)
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr("shutil.copyfile", full)
    monkeypatch.setattr("model_store.bundles.publish.finish", full)
    root = tmp_path / "root"
    with pytest.raises(OSError, match="No space left") as raised:
        publish(staged(tmp_path), manifest(), root, keep=keep)
    assert raised.value.errno == errno.ENOSPC
    assert not list(root.glob(".*.partial"))
    assert not list(root.glob("[!.]*"))


def test_other_content_has_another_id(tmp_path: Path) -> None:
    first = publish(staged(tmp_path, "a"), manifest(), tmp_path / "root")
    other = staged(tmp_path, "b")
    (other / "encoder.onnx").write_bytes(b"other weights")
    second = publish(other, manifest(), tmp_path / "root")
    assert first != second
    assert locate(tmp_path / "root") == second
    activate(tmp_path / "root", first.name)
    assert locate(tmp_path / "root") == first


def test_one_changed_byte_in_any_file_is_refused(digits_bundle: Path, tmp_path: Path) -> None:
    names = [*read_manifest(digits_bundle).files, MANIFEST_FILE]
    assert {"encoder.onnx", "gallery.faiss", "variances.npy", "items.sqlite"} <= set(names)
    for name in names:
        copy = tmp_path / "copy"
        shutil.copytree(digits_bundle, copy)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        with pytest.raises(BundleTampered, match=name.replace(".", r"\.")):
            open_bundle(copy)
        shutil.rmtree(copy)


@pytest.mark.slow
def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    bundle = publish(staged(tmp_path), manifest(), tmp_path / "root")
    path = bundle / MANIFEST_FILE
    original = path.read_bytes()
    for place in range(len(original)):
        changed = bytearray(original)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(BundleError):
            read_manifest(bundle)
    path.write_bytes(original)
    read_manifest(bundle)


@pytest.mark.parametrize("damage", ["missing", "added", "linked"])
def test_files_that_come_or_go_are_refused(tmp_path: Path, damage: str) -> None:
    bundle = publish(staged(tmp_path), manifest(), tmp_path / "root")
    if damage == "added":
        (bundle / "extra").write_text("x")
    else:
        (bundle / "encoder.onnx").unlink()
    if damage == "linked":
        (tmp_path / "elsewhere").write_bytes(b"weights")
        (bundle / "encoder.onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleTampered, match=r"encoder\.onnx|extra"):
        read_manifest(bundle)


@pytest.mark.parametrize("version", [18, 81, 99])
def test_an_unknown_schema_version_is_refused(tmp_path: Path, version: int) -> None:
    bundle = publish(staged(tmp_path), manifest(), tmp_path / "root")
    fields = json.loads((bundle / MANIFEST_FILE).read_bytes())
    fields["schema_version"] = version
    (bundle / MANIFEST_FILE).write_text(json.dumps(fields))
    with pytest.raises(BundleMismatch, match=f"schema version {version}"):
        read_manifest(bundle)


def test_nothing_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BundleNotFound, match="vouch-build all"):
        locate(tmp_path)
    (tmp_path / CURRENT_FILE).write_text("0123456789abcdef\n")
    with pytest.raises(BundleNotFound, match="'0123456789abcdef'"):
        locate(tmp_path)


@pytest.mark.parametrize(
    "garbage",
    [
        "\ufeff0123456789abcdef\r\n".encode("utf-16"),  # as PowerShell's `echo x > CURRENT`
        *(b"", b"\n", b"\xff" * 40, b"../../etc", b"0" * 10**6, b"0123456789ABCDEF"),
    ],
)
def test_a_pointer_that_names_no_bundle_is_said_and_can_be_written_anew(
    tmp_path: Path, garbage: bytes
) -> None:
    bundle = publish(staged(tmp_path), manifest(), tmp_path / "root")
    pointer = tmp_path / "root" / CURRENT_FILE
    pointer.write_bytes(garbage)
    for read in (locate, current_id):
        with pytest.raises(PointerUnreadable, match=f"{len(garbage[:1024])} bytes.*doctor"):
            read(tmp_path / "root")
    activate(tmp_path / "root", bundle.name)
    assert locate(tmp_path / "root") == bundle
    pointer.unlink()
    pointer.mkdir()
    with pytest.raises(PointerUnreadable, match="cannot be read"):
        current_id(tmp_path / "root")


@pytest.mark.parametrize("name", ["..", "../root", "/etc", "", "0" * 15, "0" * 17, "0" * 15 + "g"])
def test_only_the_id_of_a_bundle_becomes_a_path(tmp_path: Path, name: str) -> None:
    for turn in (bundle_directory, changes_path, activate):
        with pytest.raises(BundleNotFound, match="hexadecimal"):
            turn(tmp_path, name)
    assert not list(tmp_path.iterdir())
    assert bundle_directory(tmp_path, "0" * 16) == tmp_path / ("0" * 16)


def forged(root: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A bundle whose manifest says something else, with the id that it has then."""
    bundle = publish(staged(root.parent), manifest(), root)
    fields = json.loads((bundle / MANIFEST_FILE).read_bytes())
    del fields["id"]
    change(fields)
    fields["id"] = hashlib.sha256(json_text(fields).encode()).hexdigest()[:16]
    (bundle / MANIFEST_FILE).write_text(json_text(fields))
    target = bundle.rename(root / fields["id"])
    (root / CURRENT_FILE).write_text(fields["id"])
    return target


def changed(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(fields: Any) -> None:
        for part in path[:-1]:
            fields = fields[part]
        fields[path[-1]] = to

    return change


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "samples.0.file: a sample is a PNG": changed("samples", 0, "file", to="/etc/passwd"),
    "is not a path inside": changed("samples", 0, "file", to="samples/../../secret.png"),
    "the file of the sample 1 is not listed": changed("samples", 0, "file", to="samples/2.png"),
    "samples.0.id": changed("samples", 0, "id", to="../1"),
    "samples.0.extra: Extra inputs": changed("samples", 0, "extra", to=1),
    "gallery.name": changed("gallery", "name", to="g\n"),
    "more: Extra inputs": changed("more", to={}),
    "files.encoder.onnx.sha256": changed(
        "files", "encoder.onnx", to={"sha256": "a link, not a file", "bytes": 0}
    ),
    "inside its directory": changed("files", "../x", to={"sha256": "0" * 64, "bytes": 1}),
    "library_versions.numpy": changed("library_versions", "numpy", to=2),
    "fingerprint": changed("encoder", to={}),
}


@pytest.mark.parametrize("said", FORGED)
def test_read_manifest_forged_is_refused_by_field(tmp_path: Path, said: str) -> None:
    bundle = forged(tmp_path / "root", FORGED[said])
    for read in (lambda: read_manifest(bundle), lambda: open_bundle(tmp_path / "root")):
        with pytest.raises(BundleTampered, match=re.escape(said)):
            read()


def test_read_manifest_forged_within_the_schema_is_read(tmp_path: Path) -> None:
    bundle = forged(tmp_path / "root", changed("gallery", "origin", to="elsewhere"))
    assert read_manifest(bundle).gallery["origin"] == "elsewhere"


@pytest.mark.parametrize("name", ["index.json", "fields.json", "calibration.json", "labels.npy"])
def test_open_bundle_of_a_file_with_other_content_is_refused(
    digits_bundle: Path, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "root"
    shutil.copytree(digits_bundle, tmp_path / "staging")
    for file in (MANIFEST_FILE, "manifest.sig"):
        (tmp_path / "staging" / file).unlink(missing_ok=True)
    (tmp_path / "staging" / name).write_text("[1]")
    publish(tmp_path / "staging", read_manifest(digits_bundle), root)
    with pytest.raises(BundleMismatch, match="has invalid content"):
        open_bundle(root, "cpu")
