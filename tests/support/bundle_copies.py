"""Bundles made of bundles: what a test publishes without building anything."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from model_store.bundles.manifest import ENCODER_FILE, MANIFEST_FILE, Manifest, SampleQuery
from model_store.bundles.publish import publish


def copied(bundle: Path, copy: Path) -> Path:
    """Copy a bundle, and link its encoder: that is four fifths of its bytes, and only read.

    Whoever changes that file changes it of `unlinked`.
    """

    def transfer(source: str, target: str) -> None:
        (os.link if Path(source).name == ENCODER_FILE else shutil.copy2)(source, target)

    return Path(shutil.copytree(bundle, copy, copy_function=transfer))


def republished(bundle: Path, root: Path, **gallery: str) -> str:
    """Publish ``bundle`` in ``root`` with another ``description``, say; returns its id."""
    staging = root.parent / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    copied(bundle, staging)
    fields = json.loads((staging / MANIFEST_FILE).read_text(encoding="utf-8"))
    (staging / MANIFEST_FILE).unlink()
    for name in ("id", "files", "schema_version"):
        del fields[name]
    samples = tuple(SampleQuery(**sample) for sample in fields.pop("samples"))
    fields["gallery"] |= gallery
    return publish(staging, Manifest(samples=samples, **fields), root, keep=False).name


def unlinked(file: Path) -> Path:
    """Put a copy in the place of a file that has other names, which it is to be changed without."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    return file


def flip_a_byte(file: Path) -> None:
    """Damage a file in its middle, and change nothing else of it."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
