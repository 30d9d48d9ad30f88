"""The open engines by gallery name, and the number of requests that use each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from model_store.bundles.galleries import GalleryEntry, gallery_not_found
from model_store.errors import NotReady
from service.serving.engine import SearchEngine
from service.serving.opening import OnDemand

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
        self._closing: set[asyncio.Task[None]] = set()

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
            closing = asyncio.create_task(served.engine.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _is_of(served: Served, entry: GalleryEntry | None) -> bool:
    """Return whether an engine serves the created gallery ``entry``."""
    known = served.entry
    return known is not None and entry is not None and known.id == entry.id
