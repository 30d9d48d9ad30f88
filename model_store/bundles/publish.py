"""Writes a bundle with the encoder of another bundle, and publishes a staging directory.

The gallery of a bundle that is written with an existing encoder is new, and usually empty.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from model_store.bundles.directory import PUBLISH_LOCK, activate
from model_store.bundles.kept_queries import ItemFeatures
from model_store.bundles.manifest import (
    ENCODER_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    content_files,
    describe_file,
    read_manifest,
)
from model_store.bundles.retention import Hold, note, remove_left_under
from model_store.bundles.signatures import UNSIGNED, Signing, write_signature
from model_store.decision.calibration import search_settings
from model_store.decision.outliers import averaging
from model_store.encoder.contract import TEXT_ENCODER_FILE, TOKENIZER_FILE
from model_store.errors import BundleError, BundleNotFound
from model_store.files import PARTIAL, finish, flush, give_to_owner, lock_between_processes
from model_store.gallery import FaissGallery, write_faiss_parts
from model_store.gallery.protocol import Part
from model_store.table import HalfRows

ENCODER_FILES = (ENCODER_FILE, TEXT_ENCODER_FILE, TOKENIZER_FILE)
"""Files that are identical in all bundles with the same encoder."""

Items = tuple[int, Iterable[Part]]
"""The number of items, and an iterable of parts; each part has items and their embeddings."""

NOTHING: Items = (0, ())


def write_bundle(
    staging: Path,
    like: Path,
    manifest: Manifest,
    gallery: Mapping[str, str],
    shared: Path,
    items: Items = NOTHING,
) -> Manifest:
    """Write the files of a bundle into ``staging``; return its manifest without digests.

    The bundle has no calibration, because a calibration is valid only for its own gallery. The
    gallery will store the features of later items, so that it can be calibrated.

    Parameters
    ----------
    like : directory of the bundle with the encoder. The files of the encoder are linked if
        possible, else copied.
    manifest : manifest of the bundle in ``like``.
    gallery : gallery section of the manifest, for example its ``name``.
    shared : a directory on the file system of ``staging``. If a file in ``like`` cannot be linked,
        the file is copied into this directory, and the copy is linked.
    """
    staging.mkdir()
    for file in ENCODER_FILES:
        if file in manifest.files:
            _share(like / file, staging / file, shared / str(manifest.files[file]["sha256"]))
    encoder = dict(manifest.encoder)
    if "text" in encoder:
        encoder["text"] = {**encoder["text"], "calibration": None}
    n_items, parts = items
    fingerprint, dim = str(encoder["fingerprint"]), int(encoder["dim"])
    report = write_faiss_parts(staging, (n_items, dim), parts, fingerprint)
    no_features(int(encoder["n_features"])).save(staging)
    settings = search_settings(FaissGallery(staging))
    return Manifest(
        gallery={**gallery, "n_items": n_items, "search": settings, "index": asdict(report)},
        encoder=encoder,
        calibration=None,
        metrics=None,
        samples=(),
        library_versions=manifest.library_versions,
    )


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file that never changes; copy the file if linking fails."""
    try:
        os.link(source, target)
    except OSError:  # another file system, another owner, or too many links
        shutil.copy2(source, target)


def _share(source: Path, target: Path, master: Path) -> None:
    """Link ``target`` to ``source``; if linking fails, link ``target`` to a copy of ``source``.

    ``master`` is the path of the copy.
    """
    try:
        os.link(source, target)
    except OSError:
        if not master.exists():
            master.parent.mkdir(exist_ok=True)
            partial = master.with_name(f"{master.name}{PARTIAL}")
            shutil.copy2(source, partial)
            flush(partial)
            partial.rename(master)
        link_or_copy(master, target)


def no_features(n_features: int) -> ItemFeatures:
    """Return an empty sample of features; with its file, a gallery stores those of later items."""
    width = n_features // averaging(n_features)
    none = HalfRows.of(np.empty((0, width), dtype=np.float32))
    return ItemFeatures((), (), none, np.empty(0, dtype=bool), share=1.0)


def publish(
    staging: Path,
    manifest: Manifest,
    root: Path,
    *,
    keep: bool = True,
    signing: Signing = UNSIGNED,
) -> Path:
    """Make a bundle in ``root`` from the files in ``staging``, and make it the current bundle.

    All files are on the disk before the bundle's directory gets its name. So after a crash, the
    bundle is either missing or complete. If ``root`` already has the same bundle, the existing
    bundle is kept; a damaged existing bundle is replaced. One lock excludes other processes that
    publish. A second lock prevents the removal of the bundle before the bundle becomes current.
    Temporary files of killed processes are removed.

    Parameters
    ----------
    keep : if true, ``staging`` is copied. If false, ``staging`` is moved if it is on the file
        system of ``root``, else copied.
    signing : how the bundle is signed.

    Returns
    -------
    The bundle's directory, ``root/<id>``.

    Raises
    ------
    WriteRefused : the bundle needs a signature, and there is no key.
    SigningKeyError : the key file is missing or invalid.
    """
    complete = with_digests(staging, manifest)
    target = root / complete.id
    # A bundle that is published again and is already signed needs no key.
    is_signed = signing.key_file is None and (target / SIGNATURE_FILE).exists()
    key = None if is_signed else signing.key_for(root)
    if not root.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        give_to_owner(root)
    with lock_between_processes(root / PUBLISH_LOCK):
        remove_left_under(root, PUBLISH_LOCK)
        hold = _held_if_whole(target)
        if hold is None:
            key = key or signing.key_for(root)
            partial, aside = (root / f".{complete.id}.{end}" for end in ("partial", "damaged"))
            try:
                note(root / PUBLISH_LOCK, complete.id)
                if keep or staging.stat().st_dev != root.stat().st_dev:
                    copy_content(staging, partial)
                else:
                    staging.rename(partial)
                _, hold = seal(partial, complete, key, aside=aside)
            except BaseException:  # a full disk needs the space
                shutil.rmtree(partial, ignore_errors=True)
                raise
            shutil.rmtree(aside, ignore_errors=True)
        elif key is not None:
            write_signature(target, complete, key)
        with hold:
            activate(root, complete.id)
        note(root / PUBLISH_LOCK, "")
    return target


def _held_if_whole(directory: Path) -> Hold | None:
    """Lock an existing bundle and return the lock; None if the bundle is missing or damaged."""
    try:
        hold = Hold(directory)
    except BundleNotFound:
        return None
    try:
        read_manifest(directory)
    except BundleError:
        hold.close()
        return None
    return hold


def copy_content(
    directory: Path, to: Path, without: Collection[str] = (), linked: Collection[str] = ()
) -> None:
    """Copy the files of a bundle to the new directory ``to``.

    This function does not use `shutil.copytree`, whose error would hide the cause, for example a
    full disk.

    Parameters
    ----------
    without : names of files that are not copied.
    linked : names of files that never change, so bundles share them.
    """
    to.mkdir()
    for name in content_files(directory):
        if name not in without:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            copy = link_or_copy if name in linked else shutil.copy2
            copy(directory / name, to / name)


def with_digests(directory: Path, manifest: Manifest) -> Manifest:
    """Return the manifest with the digests of the files in ``directory``."""
    files = {name: describe_file(directory / name) for name in content_files(directory)}
    return replace(manifest, files=files)


def seal(
    directory: Path,
    manifest: Manifest,
    key: Ed25519PrivateKey | None = None,
    *,
    aside: Path | None = None,
) -> tuple[Path, Hold]:
    """Write the manifest into ``directory``, and rename the directory to the bundle's id.

    The function also returns a lock. Without the lock, another process could remove the bundle
    before the bundle becomes current.

    Parameters
    ----------
    aside : new path for an existing damaged bundle with the same id.
    """
    (directory / MANIFEST_FILE).write_bytes(manifest.to_json())
    if key is not None:
        write_signature(directory, manifest, key)
    finish(directory)
    hold, target = Hold(directory), directory.with_name(manifest.id)
    if aside is not None and target.exists():
        target.rename(aside)
    return directory.rename(target), hold
