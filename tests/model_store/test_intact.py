"""Files of an open bundle that are touched, or rot, are found while it is served."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from model_store.bundles.manifest import BundleFiles, Manifest, describe_file

NAMES = ("a.npy", "b.sqlite", "c.onnx")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode() * 1000)
    described = {name: describe_file(tmp_path / name) for name in NAMES}
    return Manifest({}, {}, None, None, (), {}, described)


def rot(path: Path) -> None:
    """Flip a bit as storage does: nobody wrote, and nothing says when."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", NAMES)
def test_rot_is_found_within_as_many_looks_as_there_are_files(
    name: str, tmp_path: Path, manifest: Manifest
) -> None:
    files = BundleFiles(tmp_path, manifest, hashed_again_after_s=0)
    assert [files.changed() for _ in NAMES] == [None] * 3
    rot(tmp_path / name)
    assert name in [files.changed() for _ in NAMES]
    assert files.changed() == name  # until it is mended
    rot(tmp_path / name)  # the same bit again: it is as it was
    assert [files.changed() for _ in range(4)] == [None] * 4


def test_a_file_that_nobody_touched_is_believed_until_it_is_due(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = BundleFiles(tmp_path, manifest, hashed_again_after_s=3600)
    rot(tmp_path / "b.sqlite")
    assert [files.changed() for _ in range(6)] == [None] * 6
    now = time.monotonic()
    monkeypatch.setattr("model_store.bundles.manifest.time.monotonic", lambda: now + 3601)
    assert "b.sqlite" in [files.changed() for _ in NAMES]


@pytest.mark.parametrize("how", ["written", "removed", "cut"])
def test_what_is_touched_is_found_at_once(how: str, tmp_path: Path, manifest: Manifest) -> None:
    files = BundleFiles(tmp_path, manifest)
    path, content = tmp_path / "c.onnx", (tmp_path / "c.onnx").read_bytes()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if how == "cut" else content[:-1] + b"?")
    assert files.changed() == "c.onnx"
    path.write_bytes(content)
    assert files.changed() is None


def test_file_that_was_never_there_is_reported(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "a.npy").unlink()
    assert BundleFiles(tmp_path, manifest).changed() == "a.npy"


def test_bundle_without_files_is_intact(tmp_path: Path) -> None:
    assert BundleFiles(tmp_path, Manifest({}, {}, None, None, (), {}, {})).changed() is None
