"""Pulling from places that break off, lie, or want to write elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from index_builder.exchange.places import BundleFolder
from index_builder.exchange.pull import BundlePlace, pull
from model_store.bundles.directory import activate, bundle_ids, current_id
from model_store.bundles.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest, read_manifest
from model_store.bundles.retention import prune
from model_store.errors import BundleTampered, OutputError, TransferError
from tests.support.small_bundles import small_bundle


@dataclass
class BrokenOff:
    """A place whose connection ends in the middle of a file.

    Attributes
    ----------
    after : files that come before.
    """

    place: BundlePlace
    after: int
    fetched: list[str] = field(default_factory=list)

    def read(self, name: str) -> bytes | None:
        return self.place.read(name)

    def fetch(self, name: str, size: int, directory: Path) -> None:
        self.fetched.append(name)
        self.place.fetch(name, size, directory)
        if len(self.fetched) > self.after:
            content = (directory / name).read_bytes()
            (directory / name).write_bytes(content[: size // 2])
            raise TransferError("The connection ended.")

    def put(self, directory: Path, manifest: Manifest) -> str:
        raise NotImplementedError


@dataclass
class Said:
    """A place with a manifest that somebody has made up."""

    manifest: bytes

    def read(self, name: str) -> bytes | None:
        return self.manifest if name == MANIFEST_FILE else None

    def fetch(self, name: str, size: int, directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"evil")

    def put(self, directory: Path, manifest: Manifest) -> str:
        raise NotImplementedError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return small_bundle(tmp_path / "own" / "bundles")


@pytest.mark.parametrize("after", range(4))
def test_a_pull_that_breaks_off_leaves_nothing_and_goes_on(
    bundle: Path, tmp_path: Path, after: int
) -> None:
    root = tmp_path / "pulled"
    broken = BrokenOff(BundleFolder(bundle), after)
    with pytest.raises(TransferError, match="connection"):
        pull(broken, root)
    assert (bundle_ids(root), current_id(root)) == ([], None)
    again = BrokenOff(BundleFolder(bundle), 100)
    assert read_manifest(pull(again, root)).id == bundle.name
    assert sorted(broken.fetched[:after] + again.fetched) == sorted(read_manifest(bundle).files)


def test_what_lies_in_the_way_is_neither_taken_nor_left(bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "pulled"
    partial = root / f".{bundle.name}.pulling"
    (partial / ".cache" / "deep").mkdir(parents=True)
    (partial / ".cache" / "deep" / "note").write_bytes(b"of another program")
    (partial / "encoder.onnx").symlink_to(bundle / "encoder.onnx")
    (partial / SIGNATURE_FILE).write_bytes(b"of nobody")
    target = pull(BundleFolder(bundle), root)
    assert not (target / "encoder.onnx").is_symlink()
    assert not (target / ".cache").exists()
    assert read_manifest(target).id == bundle.name


@pytest.mark.parametrize(
    "name", ["../evil", "/evil", "a/../../evil", "./evil", "", "..\\evil", "manifest.json", "a//b"]
)
def test_no_file_is_written_elsewhere(bundle: Path, tmp_path: Path, name: str) -> None:
    known = read_manifest(bundle)
    manifest = Manifest(
        known.gallery,
        known.encoder,
        known.calibration,
        known.metrics,
        (),
        {},
        {name: {"bytes": 4, "sha256": "0" * 64}},
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BundleTampered, match=r"not a path inside|cannot be listed"):
        pull(Said(manifest.to_json()), tmp_path / "deep" / "pulled")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"<html>Sign in</html>", b"[1]"):
        with pytest.raises(BundleTampered, match="not a manifest"):
            pull(Said(content), tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


def test_a_damaged_bundle_here_is_not_made_current(bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "pulled"
    target = pull(BundleFolder(bundle), root, activated=False)
    (target / "labels.npy").write_bytes(b"damage")
    with pytest.raises(BundleTampered, match=r"labels\.npy"):
        pull(BundleFolder(bundle), root)
    assert current_id(root) is None


@pytest.mark.parametrize("there", [False, True])
def test_none_is_removed_before_it_is_the_current_one(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    root = tmp_path / "pulled"
    if there:
        pull(BundleFolder(bundle), root, activated=False)
    for name in ("one", "another"):
        small_bundle(root, name)

    def activating(root: Path, bundle_id: str) -> None:
        assert bundle_id not in prune(root, 1)
        activate(root, bundle_id)

    monkeypatch.setattr("index_builder.exchange.pull.activate", activating)
    pulled = pull(BundleFolder(bundle), root)
    assert current_id(root) == pulled.name
    read_manifest(pulled)


def test_where_nothing_can_be_written_is_said(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Cannot write the bundle"):
        pull(BundleFolder(bundle), tmp_path / "file" / "pulled")
