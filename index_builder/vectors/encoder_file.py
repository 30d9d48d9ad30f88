"""Finding the file of an encoder."""

from __future__ import annotations

from pathlib import Path

from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE, MANIFEST_FILE, read_manifest
from model_store.errors import BundleNotFound


def find_encoder(path: Path) -> Path:
    """The encoder's file: ``path`` itself, or that of a bundle, or of a directory of bundles.

    Raises
    ------
    BundleNotFound : none of these.
    BundleTampered : the bundle that it is in was changed.
    """
    if path.is_file() and path.suffix == ".onnx":
        return path
    if (path / ENCODER_FILE).is_file() and not (path / MANIFEST_FILE).exists():
        return path / ENCODER_FILE
    try:
        directory = locate(path)
    except (BundleNotFound, NotADirectoryError) as error:
        raise BundleNotFound(
            f"There is no encoder at {path}: wanted what `vouch-build encoder` writes, a "
            "bundle, a directory of bundles, or an .onnx file of one of these."
        ) from error
    read_manifest(directory)
    return directory / ENCODER_FILE
