"""Finds the files of an encoder, and opens each file once in a process.

All steps of a build use the same graphs, and starting a graph takes 0.1 s of CPU time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE, MANIFEST_FILE, read_manifest
from model_store.encoder.contract import TEXT_ENCODER_FILE, TOKENIZER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.encoder.text import open_text_encoder
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


Opened = TypeVar("Opened")

MOST_OPEN = 4
"""Maximum number of open files: the source, the trunk, the head and the encoder of a build."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a file; a renamed file is still the same version."""

    path: Path = field(compare=False)
    of_content: tuple[int, ...]


def opened_once(opener: Callable[[Path], Opened], path: Path) -> Opened:
    """Return ``opener(path)``, or the result of an earlier call if the file is unchanged."""
    found = path.stat()
    version = _Version(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    result: Opened = _opened(opener, version)
    return result


def encoder_on_cpu(path: Path) -> OnnxEncoder:
    """Return the encoder in ``path``, for several threads that each encode whole batches."""
    return opened_once(_on_one_thread, path)


def _on_one_thread(path: Path) -> OnnxEncoder:
    return OnnxEncoder(path, "cpu", threads=1)


@lru_cache(maxsize=MOST_OPEN)
def _opened(opener: Callable[[Path], Any], version: _Version) -> Any:  # noqa: ANN401
    return opener(version.path)
