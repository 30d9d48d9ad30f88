"""The interface of a place that stores a bundle, and copying a bundle from it."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from index_builder.output import writing
from index_builder.progress import track
from model_store.bundles.directory import activate, bundle_directory
from model_store.bundles.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    describe_file,
    file_names,
    parse_manifest,
    read_manifest,
    verify_files,
)
from model_store.bundles.publish import seal
from model_store.bundles.retention import Hold
from model_store.bundles.signatures import require_signature
from model_store.errors import TransferError
from model_store.files import lock_between_processes, replacing

MOST_BYTES = 2**26
"""Maximum size of a manifest or signature in bytes. Real files are much smaller."""


class BundlePlace(Protocol):
    """A place that stores a bundle. A new bundle becomes visible atomically.

    All methods raise `TransferError` if the place cannot be reached, read or written.
    """

    def read(self, name: str) -> bytes | None:
        """Return a small file of the bundle; None if it does not exist."""

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of the bundle to ``directory / name``. The caller must verify the file.

        Parameters
        ----------
        size : size in the manifest, in bytes. At most this number of bytes is written.
        """

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Copy the bundle in ``directory`` to this place, and return its new address.

        Files that an interrupted copy has sent are not sent again.
        """


PULL_LOCK = ".pulling"


def pull(
    place: BundlePlace,
    root: Path,
    trusted: Collection[str] = (),
    *,
    activated: bool = True,
) -> Path:
    """Copy the bundle at ``place`` into the directory of bundles ``root``.

    The bundle becomes visible by one rename, after every byte has been verified. Complete files
    from an interrupted pull are verified, but not fetched again.

    Parameters
    ----------
    trusted : public keys; the bundle must be signed with one of these keys. If there are no keys,
        unsigned bundles are also accepted.
    activated : whether the bundle becomes the current bundle.

    Returns
    -------
    The bundle's directory.

    Raises
    ------
    TransferError : there is no bundle, or the place cannot be reached.
    BundleError : the files do not match the manifest, or no trusted key has signed the bundle.
    OutputError : the disk is full.
    """
    content = place.read(MANIFEST_FILE)
    if content is None:
        raise TransferError(f"There is no bundle at this address: no {MANIFEST_FILE} was found.")
    manifest = parse_manifest(content, "the bundle there")
    signature = place.read(SIGNATURE_FILE)
    target = bundle_directory(root, manifest.id)
    with writing(f"the bundle to {root}", "Fetched files are kept."):
        root.mkdir(parents=True, exist_ok=True)
        with lock_between_processes(root / PULL_LOCK):
            if target.exists():
                hold = Hold(target)
                read_manifest(target)
                _sign(root, target, manifest, signature, trusted)
            else:
                partial = root / f".{manifest.id}.pulling"
                partial.mkdir(exist_ok=True)
                _sign(root, partial, manifest, signature, trusted)
                _fetch(place, manifest, partial)
                _, hold = seal(partial, manifest)
                for left in root.glob(".*.pulling"):  # left by interrupted pulls
                    shutil.rmtree(left, ignore_errors=True)
        with hold:  # protects the bundle until it is current
            if activated:
                activate(root, manifest.id)
    return target


def _sign(
    root: Path,
    directory: Path,
    manifest: Manifest,
    signature: bytes | None,
    trusted: Collection[str],
) -> None:
    """Verify and store the signature in ``directory`` before large files are fetched."""
    if signature is None:
        if trusted:
            require_signature(directory, manifest, trusted)
        return
    staged = root / f".{manifest.id}.signature"
    staged.mkdir(exist_ok=True)
    try:
        (staged / SIGNATURE_FILE).write_bytes(signature)
        if trusted:
            require_signature(staged, manifest, trusted)
        if trusted or not (directory / SIGNATURE_FILE).exists():
            with replacing(directory / SIGNATURE_FILE) as file:
                file.write_bytes(signature)
    finally:
        shutil.rmtree(staged)


def _fetch(place: BundlePlace, manifest: Manifest, directory: Path) -> None:
    """Remove files that are not in ``manifest``, fetch missing files, and verify all files."""
    for name in file_names(directory):
        if name not in manifest.files and name != SIGNATURE_FILE:
            (directory / name).unlink()
    for folder in sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):  # it is not empty
            folder.rmdir()
    for name in track(sorted(manifest.files), "fetching", len(manifest.files)):
        path, described = directory / name, manifest.files[name]
        if path.is_file() and describe_file(path) == described:
            continue
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        place.fetch(name, int(described["bytes"]), directory)
    verify_files(directory, manifest)
