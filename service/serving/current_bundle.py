"""The current bundle: writing its id to `CURRENT`, and removing older bundles."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import activate
from model_store.bundles.retention import prune

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Switched:
    """The result of an activation.

    Attributes
    ----------
    bundle_id, previous_id : ids of the bundle that is served now, and of the previous bundle.
    persisted : whether `CURRENT` was written. If so, the same bundle is served after a restart.
    """

    bundle_id: str
    previous_id: str
    persisted: bool


def persist(directory: Path) -> bool:
    """Write a bundle's id to `CURRENT`; return whether this succeeded."""
    try:
        activate(directory.parent, directory.name)
    except OSError:  # for example a read-only mount
        return False
    return True


async def remove_old(bundle: Bundle, keep: int) -> None:
    """Remove old bundles that have a log of changes, except the newest ``keep``; see `prune`."""
    if bundle.root is None:
        return
    for removed in await asyncio.to_thread(prune, bundle.root, keep, compacted=True):
        fields = {"gallery": bundle.name, "bundle": removed}
        logger.info("bundle removed", extra={"fields": fields})
