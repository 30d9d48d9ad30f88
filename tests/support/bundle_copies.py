"""Bundles made of bundles: what a test publishes without building anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from model_store.bundles.manifest import MANIFEST_FILE, Manifest, SampleQuery
from model_store.bundles.publish import publish


def republished(bundle: Path, root: Path, **gallery: str) -> str:
    """Publish ``bundle`` in ``root`` with another ``description``, say; returns its id."""
    staging = root.parent / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(bundle, staging)
    fields = json.loads((staging / MANIFEST_FILE).read_text(encoding="utf-8"))
    (staging / MANIFEST_FILE).unlink()
    for name in ("id", "files", "schema_version"):
        del fields[name]
    samples = tuple(SampleQuery(**sample) for sample in fields.pop("samples"))
    fields["gallery"] |= gallery
    return publish(staging, Manifest(samples=samples, **fields), root).name


def flip_a_byte(file: Path) -> None:
    """Damage a file in its middle, and change nothing else of it."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
