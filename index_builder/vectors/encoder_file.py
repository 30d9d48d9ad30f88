"""Find the files of an encoder."""

from __future__ import annotations

from pathlib import Path

from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE, MANIFEST_FILE, read_manifest
from model_store.encoder.text import TEXT_ENCODER_FILE, TOKENIZER_FILE, open_text_encoder
from model_store.errors import BundleMismatch, BundleNotFound


def find_encoder(path: Path) -> Path:
    """Return the encoder file at ``path``: a file, a bundle, or a directory of bundles.

    Raises
    ------
    BundleNotFound : there is no encoder file at ``path``.
    BundleTampered : the bundle of the encoder was changed.
    """
    if path.is_file() and path.suffix == ".onnx":
        return path
    if (path / ENCODER_FILE).is_file() and not (path / MANIFEST_FILE).exists():
        return path / ENCODER_FILE
    try:
        directory = locate(path)
    except (BundleNotFound, NotADirectoryError) as error:
        raise BundleNotFound(
            f"There is no encoder at {path}: wanted a file of `vouch-build encoder`, a "
            "bundle, a directory of bundles, or an .onnx file of one of these."
        ) from error
    read_manifest(directory)
    return directory / ENCODER_FILE


def has_text_tower(path: Path) -> bool:
    """Return whether there is an encoder at ``path`` with a text tower beside it."""
    try:
        return (find_encoder(path).parent / TEXT_ENCODER_FILE).exists()
    except BundleNotFound:
        return False


def text_files(encoder: Path, fingerprint: str) -> list[Path]:
    """Return the files of the text tower in the folder of an encoder; empty if there is none.

    Parameters
    ----------
    fingerprint : fingerprint of the encoder.

    Raises
    ------
    BundleMismatch : the text tower belongs to another encoder.
    """
    text = open_text_encoder(encoder.parent, threads=1)
    if text is None:
        return []
    if text.metadata.image_encoder != fingerprint:
        raise BundleMismatch(
            f"{TEXT_ENCODER_FILE} beside {encoder.name} is the text tower of the encoder "
            f"{text.metadata.image_encoder[:12]}, not of this encoder, {fingerprint[:12]}. Create "
            f"both again with `vouch-build encoder --text`, or remove {TEXT_ENCODER_FILE}."
        )
    return [encoder.parent / name for name in (TEXT_ENCODER_FILE, TOKENIZER_FILE)]
