"""Publishes the files of a staging directory as a bundle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from model_store.bundles.directory import PUBLISH_LOCK, activate
from model_store.bundles.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    content_files,
    describe_file,
    read_manifest,
)
from model_store.bundles.retention import Hold, note, remove_left_under
from model_store.bundles.signatures import UNSIGNED, Signing, write_signature
from model_store.errors import BundleError, BundleNotFound
from model_store.files import finish, give_to_owner, lock_between_processes


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
                    _copy(staging, partial)
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


def _copy(staging: Path, partial: Path) -> None:
    """Copy the files of a bundle.

    This function does not use `shutil.copytree`, whose error would hide the cause, for example a
    full disk.
    """
    partial.mkdir()
    for name in content_files(staging):
        target = partial / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(staging / name, target)


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
