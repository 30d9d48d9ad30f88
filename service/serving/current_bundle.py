"""The file `CURRENT`, in a directory that may be mounted for reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.directory import activate


@dataclass(frozen=True, slots=True)
class Switched:
    """The result of an activation.

    Attributes
    ----------
    bundle_id, previous_id : the bundle that is served now, and the one before.
    persisted : whether `CURRENT` could be written, so that a restart serves the same bundle.
    """

    bundle_id: str
    previous_id: str
    persisted: bool


def persist(directory: Path) -> bool:
    """Have `CURRENT` name a bundle; whether it could be written."""
    try:
        activate(directory.parent, directory.name)
    except OSError:  # bundles are mounted for reading only, say
        return False
    return True
