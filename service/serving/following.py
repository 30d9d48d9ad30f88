"""Determines which bundle a replica may answer from.

The file `CURRENT` names a gallery's current bundle. All changes are written to the log of this
bundle. A replica that serves another bundle lacks the new changes. The rule is therefore:

======================================== ==================================================
`CURRENT` names                          answers come from
======================================== ==================================================
the served bundle                        the served bundle
a bundle without writes                  the served bundle, until the other one is open
a bundle that has a log of changes       nothing, until the other is opened: `NotReady`
a bundle that was overruled here         the bundle activated here (`CURRENT` is read-only)
nothing, or cannot be read               the served bundle; writes are impossible
======================================== ==================================================

A bundle made by a compaction has a log of changes from the start. Every request first checks the
time stamp of `CURRENT`, which takes a microsecond.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.bundle import Bundle
from model_store.bundles.changes import changes_path
from model_store.bundles.directory import CURRENT_FILE, current_id
from model_store.errors import NotReady, PointerUnreadable, VouchError
from model_store.files import FileMark, file_mark
from service.tasks import Tasks

logger = logging.getLogger(__name__)

RETRY_REFUSED_S = 30.0
"""Seconds between two attempts to open a refused bundle, while no other bundle of the gallery is
allowed to answer. Each attempt hashes every byte of the bundle."""


@dataclass(frozen=True, slots=True)
class _Overruled:
    """The bundle that `CURRENT` names, and the other bundle, which this process serves instead."""

    named: str
    instead: str


class Following:
    """Follows the `CURRENT` of each gallery.

    Parameters
    ----------
    switch : activates a bundle of a gallery if `CURRENT` still names it; raises an error if the
        bundle cannot be served.

    Attributes
    ----------
    refused : maps the name of a gallery to the reason why the bundle in `CURRENT` is not served, or
        why `CURRENT` cannot be read.
    """

    def __init__(self, switch: Callable[[str, str], Awaitable[object]]) -> None:
        self.refused: dict[str, str] = {}
        self._switch = switch
        self._confirmed: dict[str, tuple[str, FileMark]] = {}
        self._overruled: dict[str, _Overruled] = {}
        self._switches: dict[str, asyncio.Task[None]] = {}
        self._refused_at: dict[str, tuple[str, float]] = {}

    async def ahead(self, bundle: Bundle) -> str | None:
        """Return the id of the bundle in `CURRENT`, if it may have changes that ``bundle`` lacks.

        Return None if ``bundle`` has all changes. If `CURRENT` names another bundle, the activation
        of that bundle starts.
        """
        root, name, served = bundle.root, bundle.name, bundle.directory.name
        if root is None:
            return None
        mark = _mark(root)  # read before `CURRENT`: a later write changes the mark
        if mark is not None and self._confirmed.get(name) == (served, mark):
            self._accept(name)  # a refusal no longer matters
            return None
        named = await self.named(bundle)
        if named == served:
            if mark == _mark(root):  # otherwise just written: the next request checks again
                self._confirm(name, served, mark)
            return None
        if named is None or self._is_overruled(name, named):
            return None
        is_ahead = await asyncio.to_thread(changes_path(root, named).exists)
        self._begin(name, named, again=is_ahead)
        return named if is_ahead else None

    async def changed_over(self, name: str, patience_s: float | None = None) -> bool:
        """Wait for the running activation, at most ``patience_s``; return whether it has ended."""
        task = self._switches.get(name)
        if task is None or task.done() or (patience_s is not None and patience_s <= 0):
            return False
        done, _ = await asyncio.wait({task}, timeout=patience_s)
        return bool(done)

    async def named(self, bundle: Bundle) -> str | None:
        """Return the bundle id in `CURRENT`; None if the file is missing or cannot be read."""
        if bundle.root is None:
            return None
        try:
            return await asyncio.to_thread(current_id, bundle.root)
        except PointerUnreadable as error:  # for example a disk that is briefly unavailable
            if self.refused.get(bundle.name) != str(
                error
            ):  # every request checks: log each reason once
                fields = {"gallery": bundle.name, "reason": str(error)}
                logger.error("CURRENT cannot be read", extra={"fields": fields})  # noqa: TRY400
            self.refused[bundle.name] = str(error)
            return None

    async def still_names(self, bundle: Bundle, bundle_id: str) -> bool:
        """Return whether `CURRENT` names the bundle ``bundle_id``.

        False if this process ignores `CURRENT`, see `overrule`.
        """
        named = await self.named(bundle)
        return named == bundle_id and not self._is_overruled(bundle.name, bundle_id)

    async def overrule(self, bundle: Bundle, instead: str) -> None:
        """Serve the bundle ``instead``, and ignore `CURRENT`, because a write to it failed."""
        named = await self.named(bundle)
        if named is not None:
            self._overruled[bundle.name] = _Overruled(named, instead)

    def obey(self, name: str) -> None:
        """Follow `CURRENT` again."""
        self._overruled.pop(name, None)

    def not_ready(self, name: str, ahead: str) -> NotReady:
        """Return the error for a gallery whose newer bundle (id: ``ahead``) is not open yet."""
        reason = self.refused.get(name)
        how = f"refuses it: {reason}" if reason else "is opening it. Send the request again"
        return NotReady(
            f"The gallery {name!r} continues in the newer bundle {ahead}. This service does not "
            f"have the changes of this bundle yet. The service {how.rstrip('.')}."
        )

    def forget(self, name: str) -> None:
        """Remove the state of a gallery that is no longer served."""
        for kept in (self.refused, self._confirmed, self._overruled, self._refused_at):
            kept.pop(name, None)

    async def close(self) -> None:
        """Cancel running activations."""
        await Tasks(self._switches.values()).cancel()

    def _confirm(self, name: str, served: str, mark: FileMark | None) -> None:
        """Record that `CURRENT` names the served bundle; this holds until the next write."""
        if mark is not None:
            self._confirmed[name] = served, mark
        self._lift(name, served)
        self._accept(name)

    def _accept(self, name: str) -> None:
        """Clear the recorded refusal of a gallery."""
        for kept in (self.refused, self._refused_at):
            kept.pop(name, None)

    def _is_overruled(self, name: str, named: str) -> bool:
        overruled = self._overruled.get(name)
        return overruled is not None and overruled.named == named

    def _lift(self, name: str, served: str) -> None:
        """Follow `CURRENT` again if it names the bundle that `overrule` chose.

        A check that began before the activation may still report the previous bundle; this report
        has no effect.
        """
        overruled = self._overruled.get(name)
        if overruled is not None and overruled.instead == served:
            self.obey(name)

    def _begin(self, name: str, named: str, *, again: bool) -> None:
        """Start an activation if none runs; with ``again``, also retry a refused bundle."""
        task = self._switches.get(name)
        if task is not None and not task.done():
            return
        refused, at = self._refused_at.get(name, ("", 0.0))
        if refused == named and not (again and time.monotonic() - at > RETRY_REFUSED_S):
            return
        # In a separate task, so that the old bundle can stay ready while another is opened.
        self._switches[name] = asyncio.create_task(self._change_over(name, named))

    async def _change_over(self, name: str, named: str) -> None:
        try:
            await self._switch(name, named)
        except VouchError as error:
            self._refuse(name, named, str(error))
        except Exception:
            logger.exception("unhandled", extra={"fields": {"gallery": name, "bundle": named}})
            self._refuse(name, named, "The bundle cannot be opened; see the service's log.")
        else:
            self.refused.pop(name, None)
            self._refused_at.pop(name, None)

    def _refuse(self, name: str, named: str, reason: str) -> None:
        self.refused[name] = reason
        self._refused_at[name] = named, time.monotonic()
        fields = {"gallery": name, "bundle": named, "reason": reason}
        logger.error("bundle refused", extra={"fields": fields})


def _mark(root: Path) -> FileMark | None:
    return file_mark(f"{root}/{CURRENT_FILE}")
