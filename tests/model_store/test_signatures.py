"""Signed bundles: who published one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from model_store.bundles.backup import back_up, restore
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import locate
from model_store.bundles.manifest import SIGNATURE_FILE, Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.bundles.signatures import (
    Signing,
    new_key,
    read_private_key,
    read_public_key,
    require_signature,
    write_signature,
)
from model_store.errors import BundleUntrusted, SigningKeyError, WriteRefused
from model_store.gallery import NewItem, Thumbnail
from tests.laws.gallery_laws import random_embeddings
from tests.support.live_bundles import DIM, opened, published, upsert


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_key(tmp_path / "publisher.key")
    return tmp_path / "publisher.key"


@pytest.fixture
def public(key: Path) -> str:
    return read_public_key(key.with_name("publisher.key.pub"))


def described(text: str) -> Manifest:
    return Manifest({"name": "g", "description": text}, {"fingerprint": "f"}, None, None, (), {})


def bundle_of(folder: Path, text: str, key: Path | None) -> Path:
    staging = folder / f"staging-{text}"
    staging.mkdir()
    (staging / "encoder.onnx").write_bytes(b"weights")
    return publish(staging, described(text), folder / "root", signing=Signing(key))


def test_a_new_key_beside_another_private_key_leaves_no_public_key(tmp_path: Path) -> None:
    path = tmp_path / "publisher.key"
    path.write_text("another key")
    with pytest.raises(SigningKeyError, match=rf"The file {path} already exists"):
        new_key(path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [
        ("publisher.key", "another key")
    ]
    path.rename(public := tmp_path / "publisher.key.pub")
    with pytest.raises(SigningKeyError, match=rf"The file {public} already exists"):
        new_key(path)
    assert [one.name for one in tmp_path.iterdir()] == ["publisher.key.pub"]


@pytest.mark.parametrize("n_written", [0, 1])
def test_a_new_key_on_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_written: int
) -> None:
    path, fsync = tmp_path / "publisher.key", os.fsync
    done: list[int] = []

    def full(descriptor: int) -> None:
        if len(done) == n_written:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)
        done.append(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SigningKeyError, match=r"No space left on device: '.*publisher"):
            new_key(path)
    assert not [*tmp_path.iterdir()]
    assert read_public_key(new_key(path)), "the same call succeeds later"


def test_the_bundle_of_a_trusted_key_is_trusted(tmp_path: Path, key: Path, public: str) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    require_signature(bundle, read_manifest(bundle), {"00" * 32, public})


def test_with_a_signature_it_is_the_same_bundle(tmp_path: Path, key: Path, public: str) -> None:
    bundle = bundle_of(tmp_path, "a", None)
    before = read_manifest(bundle)
    with pytest.raises(BundleUntrusted, match=rf"{bundle.name} is not signed\. Sign it with"):
        require_signature(bundle, before, {public})
    shutil.rmtree(tmp_path / "staging-a")
    assert bundle_of(tmp_path, "a", key) == bundle  # published again, and signed this time
    assert read_manifest(bundle) == before
    require_signature(bundle, before, {public})


def test_on_a_full_disk_the_signature_that_was_there_stays(
    tmp_path: Path, key: Path, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    manifest, write_text = read_manifest(bundle), Path.write_text

    def half(path: Path, text: str, **options: str) -> int:
        write_text(path, text[:50], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        write_signature(bundle, manifest, read_private_key(key))
    require_signature(bundle, read_manifest(bundle), {public})


def test_a_stranger_s_signature_is_refused(tmp_path: Path, key: Path) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    with pytest.raises(BundleUntrusted, match="signed by a key that is not trusted"):
        require_signature(bundle, read_manifest(bundle), {other})


def test_a_signature_is_of_one_bundle(tmp_path: Path, key: Path, public: str) -> None:
    second, first = bundle_of(tmp_path, "b", None), bundle_of(tmp_path, "a", key)
    shutil.copyfile(first / SIGNATURE_FILE, second / SIGNATURE_FILE)
    with pytest.raises(BundleUntrusted, match="signature of another manifest"):
        require_signature(second, read_manifest(second), {public})


@pytest.mark.parametrize(
    ("field", "value"), [("public_key", None), ("signature", "zz"), ("signature", "00" * 64)]
)
def test_a_changed_signature_is_none(
    tmp_path: Path, key: Path, public: str, field: str, value: str | None
) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    signed = json.loads((bundle / SIGNATURE_FILE).read_text())
    signed[field] = value
    (bundle / SIGNATURE_FILE).write_text(json.dumps(signed))
    with pytest.raises(BundleUntrusted):
        require_signature(bundle, read_manifest(bundle), {public})


def test_key_that_begins_or_ends_like_a_trusted_one_is_not_trusted(
    tmp_path: Path, key: Path, public: str
) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    manifest = read_manifest(bundle)
    signed = json.loads((bundle / SIGNATURE_FILE).read_text())
    require_signature(bundle, manifest, {public})
    for neighbour in (f"{public}0", f"0{public}", public[:-1], public[1:], public.upper(), ""):
        (bundle / SIGNATURE_FILE).write_text(json.dumps({**signed, "public_key": neighbour}))
        with pytest.raises(BundleUntrusted, match="by a key that is not trusted"):
            require_signature(bundle, manifest, {public})


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"public_key": "00"}'])
def test_a_file_that_is_no_signature_is_refused_in_words(
    tmp_path: Path, key: Path, public: str, content: bytes
) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    (bundle / SIGNATURE_FILE).write_bytes(content)
    with pytest.raises(BundleUntrusted, match="a signature that cannot be read"):
        require_signature(bundle, read_manifest(bundle), {public})


@pytest.fixture
def root(tmp_path: Path, key: Path) -> Path:
    """A directory of one signed bundle with three items."""
    items = [NewItem(f"{n}", None, {}, Thumbnail(b"", "image/png")) for n in range(3)]
    (tmp_path / "gallery").mkdir()
    root = published(tmp_path / "gallery", random_embeddings(3, DIM, 0), items)
    write_signature(locate(root), read_manifest(locate(root)), read_private_key(key))
    return root


def test_a_compacted_bundle_is_signed_by_who_compacts(root: Path, key: Path, public: str) -> None:
    live, before = opened(root), locate(root)
    live.commit([upsert("new", 1)])
    with (
        pytest.raises(WriteRefused, match=f"the bundle {before.name} is signed"),
        Compaction(root, read_manifest(before), live),
    ):
        pass
    with Compaction(root, read_manifest(before), live, Signing(key)) as compaction:
        prepared = compaction.prepare()
        compaction.switch()
    require_signature(prepared, read_manifest(prepared), {public})


def test_signed_bundle_is_published_again_without_the_key(
    tmp_path: Path, key: Path, public: str
) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    shutil.rmtree(tmp_path / "staging-a")
    assert bundle_of(tmp_path, "a", None) == bundle
    require_signature(bundle, read_manifest(bundle), {public})


def test_signed_bundle_is_not_replaced_by_an_unsigned_one(
    tmp_path: Path, key: Path, public: str
) -> None:
    bundle = bundle_of(tmp_path, "a", key)
    with pytest.raises(WriteRefused, match=rf"{bundle.name} is signed.* Set VOUCH_SIGNING_KEY"):
        bundle_of(tmp_path, "b", None)
    assert locate(tmp_path / "root") == bundle


def test_a_backup_keeps_the_signature(root: Path, tmp_path: Path, public: str) -> None:
    back_up(root, tmp_path / "a.tar")
    restore(tmp_path / "a.tar", tmp_path / "again")
    bundle = locate(tmp_path / "again")
    require_signature(bundle, read_manifest(bundle), {public})


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.key").write_text("no key")
    for read in (read_private_key, read_public_key):
        with pytest.raises(SigningKeyError, match=r"no\.key is no (private|public) key"):
            read(tmp_path / "no.key")
