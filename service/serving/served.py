"""The open engines by gallery name, and which bundle of a gallery may answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path

from model_store.bundles.bundle import Bundle
from model_store.bundles.changes import changes_path
from model_store.bundles.directory import CURRENT_FILE, bundle_directory, bundle_ids, current_id
from model_store.bundles.galleries import GalleryEntry, GalleryFolder, gallery_not_found
from model_store.errors import (
    ActivationRefused,
    BundleNotFound,
    NotReady,
    PointerUnreadable,
    StorageFailed,
    VouchError,
)
from model_store.files import FileMark, file_mark
from service.scheduling import Tasks
from service.serving.engine import SearchEngine

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
    """Follows the `CURRENT` of each gallery: which bundle this replica may answer from.

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

    A bundle made by a compaction has a log of changes from the start. Every request first checks
    the time stamp of `CURRENT`, which takes a microsecond.

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
        root, name = bundle.root, bundle.name
        if root is None:
            return None
        served = bundle.directory.name
        pointer = f"{root}/{CURRENT_FILE}"
        mark = file_mark(pointer)  # read before `CURRENT`: a later write changes the mark
        if mark is not None and self._confirmed.get(name) == (served, mark):
            if name in self.refused:
                self._accept(name)  # a refusal no longer matters
            return None
        named = await self.named(bundle)
        if named == served:
            if mark == file_mark(pointer):  # otherwise just written: the next request checks again
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
            self._accept(name)

    def _refuse(self, name: str, named: str, reason: str) -> None:
        self.refused[name] = reason
        self._refused_at[name] = named, time.monotonic()
        fields = {"gallery": name, "bundle": named, "reason": reason}
        logger.error("bundle refused", extra={"fields": fields})


OpenBundle = Callable[[Path], Bundle]
StartEngine = Callable[[Bundle], Awaitable[SearchEngine]]

OPENED_AT_ONCE = 2
"""Maximum number of galleries that are opened at the same time."""


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens bundles and starts their engines.

    Attributes
    ----------
    open_bundle : opens and verifies the bundle of a directory.
    start : starts an engine for an open bundle, and returns it after its first canary.
    """

    open_bundle: OpenBundle
    start: StartEngine

    async def successor(self, now: Bundle, directory: Path) -> SearchEngine:
        """Open a bundle that replaces another, and start its engine.

        Raises
        ------
        ActivationRefused : the bundle cannot be served.
        """
        try:
            opened = await asyncio.to_thread(self._open_within, directory)
        except VouchError as error:
            raise ActivationRefused(
                f"The bundle {directory.name} cannot be served; the current bundle stays in use. "
                f"{error}"
            ) from error
        if opened.built_as != now.built_as:
            opened.retriever.encoder.close()
            raise ActivationRefused(
                f"The bundle {directory.name} holds the gallery {opened.built_as!r}, not "
                f"{now.built_as!r}. Publish the bundle into another directory."
            )
        try:
            return await self.start(replace(opened, entry=now.entry))
        except VouchError as error:
            raise ActivationRefused(
                f"The bundle {directory.name} opens, but did not answer a canary: {error}"
            ) from error

    def _open_within(self, directory: Path) -> Bundle:
        """Open a bundle with the changes of its gallery."""
        opened = self.open_bundle(directory)
        try:
            return opened.within(directory.parent)
        except VouchError:
            opened.retriever.encoder.close()
            raise


def directory_of(now: Bundle, bundle_id: str) -> Path:
    """Return the directory of another bundle of a gallery.

    Raises
    ------
    ActivationRefused : there is only one bundle.
    BundleNotFound : the gallery has no such bundle.
    """
    if now.root is None:
        raise ActivationRefused(
            f"The gallery {now.name!r} is served from one bundle. To activate "
            "other bundles, start the service with the directory that contains the bundles."
        )
    if bundle_id not in bundle_ids(now.root):
        raise BundleNotFound(
            f"There is no bundle {bundle_id!r} of the gallery {now.name!r} here. Publish it "
            "with `vouch-build publish`."
        )
    return bundle_directory(now.root, bundle_id)


class OnDemand:
    """Opens the galleries of a folder on demand; concurrent requests for a gallery open it once.

    Parameters
    ----------
    folder : folder of the created galleries; None if there is none.
    """

    def __init__(self, opener: Opener, folder: GalleryFolder | None) -> None:
        self._opener, self.folder = opener, folder
        self._turns = asyncio.Semaphore(OPENED_AT_ONCE)
        self._opening: dict[str, asyncio.Task[None]] = {}

    def find(self, name: str) -> GalleryEntry | None:
        """Return the created gallery with this name; None if there is none."""
        return None if self.folder is None else self.folder.find(name)

    async def open(self, entry: GalleryEntry, opened: Callable[[SearchEngine], None]) -> None:
        """Open a gallery once for all waiting requests, and call ``opened`` with the new engine.

        The opening continues even if the caller is cancelled.

        Raises
        ------
        GalleryNotFound : the gallery was dropped after the request arrived.
        VouchError : the gallery cannot be opened.
        """
        opening = self._opening.get(entry.id)
        if opening is None:
            opening = asyncio.create_task(self._open(entry, opened), context=Context())
            self._opening[entry.id] = opening
        await asyncio.shield(opening)

    async def close(self) -> None:
        """Wait for galleries that are being opened."""
        await asyncio.gather(*self._opening.values(), return_exceptions=True)

    async def _open(self, entry: GalleryEntry, opened: Callable[[SearchEngine], None]) -> None:
        folder = self.folder
        try:
            if folder is None:
                raise gallery_not_found(entry.name)
            async with self._turns:
                bundle = await self._opened(folder, entry)
                opened(await self._opener.start(replace(bundle, entry=entry)))
        finally:  # before the task ends, so that no request finds an ended task
            self._opening.pop(entry.id, None)

    async def _opened(self, folder: GalleryFolder, entry: GalleryEntry) -> Bundle:
        try:
            return await asyncio.to_thread(self._opener.open_bundle, folder.root(entry))
        except (OSError, VouchError) as error:
            if folder.find(entry.name) is None:  # the gallery was dropped in the meantime
                raise gallery_not_found(entry.name) from error
            fields = {"gallery": entry.name, "id": entry.id, "reason": str(error)}
            logger.error("gallery not opened", extra={"fields": fields})  # noqa: TRY400
            if isinstance(error, VouchError):
                raise
            raise StorageFailed(
                f"The gallery {entry.name!r} cannot be read ({error.strerror}). The operator "
                "should check the directory of created galleries."
            ) from error


OPEN_TIMEOUT_S = 5.0
"""Seconds that a request waits for a gallery that is being opened; half of a request's timeout."""


@dataclass(eq=False, slots=True)
class Served:
    """An engine, and the number of requests that use it.

    Attributes
    ----------
    retired : whether the engine closes after its last request.
    asked_at : the time of the last request, by the monotonic clock.
    """

    engine: SearchEngine
    leases: int = 0
    retired: bool = False
    asked_at: float = 0.0

    @property
    def entry(self) -> GalleryEntry | None:
        """See `Bundle.entry`."""
        return self.engine.bundle.entry


class ServedGalleries:
    """The open galleries by name: galleries from the service's start, and created galleries.

    Parameters
    ----------
    on_demand : opens created galleries.
    most_open : maximum number of open created galleries; the least recently used are closed.
    forget : called with the name of every gallery that is no longer served.
    """

    def __init__(self, on_demand: OnDemand, most_open: int, forget: Callable[[str], None]) -> None:
        self._on_demand, self._most_open, self._forget = on_demand, most_open, forget
        self._served: dict[str, Served] = {}
        self._closing = Tasks()

    def add(self, name: str, engine: SearchEngine) -> None:
        """Serve a gallery with this engine; an earlier engine of the gallery is retired."""
        before = self._served.get(name)
        self._served[name] = Served(engine, asked_at=time.monotonic())
        if before is not None:
            before.retired = True
            self._close_if_done_with(before)

    def get(self, name: str) -> Served | None:
        """Return the open engine of a gallery; None if it is not open."""
        return self._served.get(name)

    def require(self, name: str) -> Served:
        """Return the open engine of a gallery, or raise `GalleryNotFound`."""
        served = self._served.get(name)
        if served is None:
            raise gallery_not_found(name)
        return served

    def engines(self, *, created: bool | None = None) -> list[SearchEngine]:
        """Return the open engines, sorted by gallery name.

        ``created`` selects the galleries created over HTTP (True), the other galleries (False), or
        all galleries (None).
        """
        return [
            self._served[name].engine
            for name in sorted(self._served)
            if created is None or created == (self._served[name].entry is not None)
        ]

    async def find(self, name: str) -> Served:
        """Return the engine of the gallery that now has this name; open it if necessary.

        Raises
        ------
        GalleryNotFound
        NotReady : the gallery is still being opened.
        """
        until = time.monotonic() + OPEN_TIMEOUT_S
        while True:
            served = self._served.get(name)
            if served is not None and served.engine.bundle.entry is None:
                return served
            entry = self._on_demand.find(name)
            if served is not None and not _is_of(
                served, entry
            ):  # dropped or renamed, by any process
                self.retire(name)
                served = None
            if entry is None:
                raise gallery_not_found(name)
            if served is not None:
                if served.entry != entry:  # the title or description changed
                    served.engine.bundle = replace(served.engine.bundle, entry=entry)
                served.asked_at = time.monotonic()
                return served
            await self._open(entry, until)

    @contextmanager
    def held(self, served: Served) -> Iterator[Served]:
        """Prevent an engine from closing; a retired engine closes after its last use."""
        served.leases += 1
        try:
            yield served
        finally:
            served.leases -= 1
            if served.retired:
                self._close_if_done_with(served)

    def close_nameless(self) -> None:
        """Close galleries that were dropped or renamed, here or by another process."""
        for name, served in [*self._served.items()]:
            if served.entry is not None and not _is_of(served, self._on_demand.find(name)):
                self.retire(name)

    def retire(self, name: str) -> None:
        """Stop serving a gallery; its engine closes after its last request."""
        served = self._served.pop(name)
        self._forget(name)
        served.retired = True
        self._close_if_done_with(served)

    async def close(self) -> None:
        """Close every engine."""
        await self._on_demand.close()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for served in self._served.values():
            await served.engine.close()

    async def _open(self, entry: GalleryEntry, until: float) -> None:
        """Open a gallery; the opening continues even if no request waits."""
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await self._on_demand.open(entry, self._opened)
        except TimeoutError:
            raise NotReady(
                f"The gallery {entry.name!r} is being opened. Send the request again."
            ) from None

    def _opened(self, engine: SearchEngine) -> None:
        self.add(engine.bundle.name, engine)
        idle = sorted(
            (served.asked_at, name)
            for name, served in self._served.items()
            if served.entry is not None and served.engine is not engine and not served.leases
        )  # without the new engine: its first request has no lease yet
        created = self.engines(created=True)
        n_open = sum(
            1 + (one.shadow is not None) for one in created
        )  # an open shadow counts as a bundle too
        for _, name in idle[: max(0, n_open - self._most_open)]:
            self.retire(name)

    def _close_if_done_with(self, served: Served) -> None:
        if served.retired and served.leases == 0:
            self._closing.start(served.engine.close())


def _is_of(served: Served, entry: GalleryEntry | None) -> bool:
    """Return whether an engine serves the created gallery ``entry``."""
    known = served.entry
    return known is not None and entry is not None and known.id == entry.id
