"""Having `CURRENT` name a bundle, in a directory that may be mounted for reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.directory import activate


@dataclass(frozen=True, slots=True)
class Switched:
    """What an activation did.

    Attributes
    ----------
    bundle_id, previous_id : what is served now, and what was before.
    persisted : whether `CURRENT` could be written, so that a restart serves the same.
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
