"""Writes the directory of an encoder atomically, with a card that states the encoder's origin."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from index_builder.output import writing
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import OutputError
from model_store.files import PARTIAL, json_text

CARD_FILE = "encoder.json"
CARD_FORMAT = "vouch-encoder/1"


@contextmanager
def replacing_encoder(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory, which replaces ``directory`` at the end if no error occurs.

    Raises
    ------
    OutputError : the disk is full, or ``directory`` has files and is not an encoder's directory.
    """
    is_there = directory.exists() and (directory.is_file() or any(directory.iterdir()))
    if is_there and not (directory / CARD_FILE).is_file():
        raise OutputError(
            f"{directory} exists and is not an encoder's directory. Name another directory."
        )
    staging = directory.with_name(f".{directory.name}{PARTIAL}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        with writing(f"the encoder in {directory}"):
            staging.mkdir(parents=True)
            yield staging
            shutil.rmtree(directory, ignore_errors=True)
            staging.rename(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_card(directory: Path, card: Mapping[str, Any]) -> None:
    """Write the card of the encoder in ``directory``, with the SHA-256 of the ONNX file."""
    sha256 = hashlib.sha256((directory / ENCODER_FILE).read_bytes()).hexdigest()
    content = {"format": CARD_FORMAT, **card, "sha256": sha256}
    (directory / CARD_FILE).write_text(json_text(content), encoding="utf-8")


def is_encoder(directory: Path, origin: Mapping[str, str]) -> bool:
    """Return whether ``directory`` has an undamaged encoder with this origin."""
    try:
        card = json.loads((directory / CARD_FILE).read_text(encoding="utf-8"))
        content = (directory / ENCODER_FILE).read_bytes()
        found, sha256 = card["origin"], card["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    same = isinstance(found, dict) and origin.items() <= found.items()
    return same and hashlib.sha256(content).hexdigest() == sha256
