"""What `CURRENT` names, in a directory that may be mounted for reading, or away for a moment."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.directory import activate, current_id

logger = logging.getLogger(__name__)


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


def named_by(root: Path) -> str | None:
    """What `CURRENT` names; None too where it cannot be read at the moment."""
    try:
        return current_id(root)
    except OSError:
        logger.exception("CURRENT cannot be read")
        return None


def persist(directory: Path) -> bool:
    """Have `CURRENT` name a bundle; whether it could be written."""
    try:
        activate(directory.parent, directory.name)
    except OSError:  # bundles are mounted for reading only, say
        return False
    return True
