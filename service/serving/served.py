"""The open engines by gallery name: opened, replaced, and in use by requests."""

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
from model_store.bundles.directory import bundle_directory, bundle_ids
from model_store.bundles.galleries import GalleryEntry, GalleryFolder, gallery_not_found
from model_store.errors import (
    ActivationRefused,
    BundleNotFound,
    NotReady,
    StorageFailed,
    VouchError,
)
from service.tasks import Tasks

from .engine import SearchEngine

logger = logging.getLogger(__name__)

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
            if served is not None and served.entry is None:
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
        """Prevent an engine from closing."""
        served.leases += 1
        try:
            yield served
        finally:
            served.leases -= 1
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
