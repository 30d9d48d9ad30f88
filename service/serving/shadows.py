"""Starts and ends the shadow bundles of all galleries, and restores them after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import ShadowTerms, read_shadow, write_shadow
from model_store.errors import (
    ActivationRefused,
    PointerUnreadable,
    ShadowNotFound,
    VouchError,
)
from model_store.gallery.protocol import find_row
from service.encoding.cache import Cache, CacheEntry
from service.observability.metrics import Telemetry, counted_as
from service.scheduling import Tasks
from service.serving.engine import SearchEngine
from service.serving.lease import Lease
from service.serving.queries import SearchParameters
from service.serving.served import Opener, directory_of
from service.serving.shadow import Shadow, SpareRoom, Tried

logger = logging.getLogger(__name__)


ACTIVATED: Final = "The shadow bundle {bundle_id} was activated; it is now the served bundle."
REPLACED = "Another shadow was started, with another bundle or another share of the queries."
REMOVED = "It was ended."

_LOOKED_AT_ONCE = 1_000
"""Number of items in a block when two galleries are compared."""


class ReadOnlyCache:
    """A read-only view of the service's cache, for shadow bundles."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    @property
    def state(self) -> str:
        """See `Cache.state`."""
        return self._cache.state

    @property
    def is_shared(self) -> bool:
        """See `Cache.is_shared`."""
        return self._cache.is_shared

    @property
    def is_reachable(self) -> bool:
        """See `Cache.is_reachable`."""
        return self._cache.is_reachable

    async def get(self, key: str) -> CacheEntry | None:
        """The entry, or None."""
        return await self._cache.get(key)

    async def put(self, key: str, entry: CacheEntry) -> None:
        """Store nothing, because entries of a shadow would displace entries of the service."""

    async def remove(self, key: str) -> None:
        """Delete nothing, because a shadow stores nothing."""

    async def close(self) -> None:
        """Do nothing, because the service still uses the cache."""


class Shadows:
    """The shadow bundles of all galleries. The file `SHADOW` beside `CURRENT` names a shadow.

    Each process counts its own comparisons, from the start of the shadow. If another bundle is
    activated, the shadow ends. A new comparison with the activated bundle then starts, unless the
    activated bundle is the shadow bundle itself.

    Parameters
    ----------
    opener : opens bundles whose engines store no queries.
    is_spare : see `Room`.
    period_s : seconds between checks of each `SHADOW`.
    """

    def __init__(
        self, opener: Opener, telemetry: Telemetry, is_spare: Callable[[], bool], period_s: float
    ) -> None:
        self._opener, self._telemetry, self._period_s = opener, telemetry, period_s
        self._room = SpareRoom(is_spare, asyncio.Lock())
        self._changing = asyncio.Lock()
        self._unwritten: dict[str, ShadowTerms] = {}
        self._last: dict[str, Shadow] = {}
        self._unreadable: dict[str, str] = {}
        self._tasks = Tasks()

    async def watch(self, engines: Callable[[], Sequence[SearchEngine]]) -> None:
        """Follow each `SHADOW` in an endless loop that survives errors."""
        while True:
            open_now = engines()
            for gone in self._last.keys() - {engine.bundle.key for engine in open_now}:
                del self._last[gone]
            wanted = await asyncio.to_thread(lambda now: [*map(self._wanted, now)], open_now)
            for engine, terms in zip(open_now, wanted, strict=True):
                try:
                    await self._follow(engine, terms)
                except Exception:
                    fields = {"gallery": engine.bundle.name}
                    logger.exception("shadow not followed", extra={"fields": fields})
            await asyncio.sleep(self._period_s)

    async def start(self, engine: SearchEngine, terms: ShadowTerms) -> Shadow:
        """Start a shadow bundle for a gallery; the start continues even if the caller is cancelled.

        A running shadow with the same bundle and share continues.

        Raises
        ------
        BundleNotFound
        ActivationRefused : there is only one bundle; or the shadow bundle is the served bundle,
            cannot be opened, or belongs to another gallery.
        """
        return await asyncio.shield(self._tasks.start(self._start(engine, terms)))

    async def end(self, engine: SearchEngine) -> Shadow:
        """End the shadow of an engine's gallery, and return its result.

        Raises
        ------
        ShadowNotFound
        """
        return await asyncio.shield(self._tasks.start(self._end(engine)))

    def of(self, engine: SearchEngine) -> Shadow:
        """Return the running shadow of an engine's gallery, else the shadow that ended last.

        Raises
        ------
        ShadowNotFound
        """
        bundle = engine.bundle
        shadow = engine.shadow or self._last.get(bundle.key)
        if shadow is None:
            raise ShadowNotFound(
                f"No bundle of the gallery {bundle.name!r} is tried in the shadow. "
                "`PUT /v1/galleries/{gallery}/shadow` names one."
            )
        if shadow.ended is not None and shadow.terms.bundle_id == bundle.manifest.id:
            shadow.ended = ACTIVATED.format(bundle_id=bundle.manifest.id)
        return shadow

    def is_persisted(self, engine: SearchEngine) -> bool:
        """Return whether the shadow of a gallery continues after a restart."""
        return engine.bundle.key not in self._unwritten

    async def close(self) -> None:
        """Cancel the running tasks. The shadows stay open; each engine closes its own shadow."""
        await self._tasks.cancel()

    async def _start(self, engine: SearchEngine, terms: ShadowTerms) -> Shadow:
        async with self._changing:
            now = engine.shadow
            if now is not None and now.ended is None and now.terms == terms:
                return now
            shadow = await self._opened(engine, terms)
            await self._write(engine.bundle, terms)
            await self._attach(engine, shadow)
            return shadow

    async def _end(self, engine: SearchEngine) -> Shadow:
        async with self._changing:
            shadow = self.of(engine)
            await self._write(engine.bundle, None)
            await self._let_go(engine)
            self._last.pop(engine.bundle.key, None)
            return shadow

    async def _follow(self, engine: SearchEngine, terms: ShadowTerms | None) -> None:
        """Start, replace or end the shadow as `SHADOW` demands, unless a change is in progress."""
        if self._changing.locked() or not _differs(engine, terms):
            return
        async with self._changing:
            terms = await asyncio.to_thread(self._wanted, engine)
            if not _differs(engine, terms):
                return
            if terms is None:
                await self._let_go(engine)
            elif terms.bundle_id == engine.bundle.manifest.id:
                await self._write(engine.bundle, None)
                fields = {"gallery": engine.bundle.name, "bundle": terms.bundle_id}
                logger.info("shadow activated", extra={"fields": fields})
            else:
                await self._attach(engine, await self._opened_or_refused(engine, terms))

    async def _let_go(self, engine: SearchEngine) -> None:
        """End the shadow of an engine, if the engine has a shadow."""
        shadow, engine.shadow = engine.shadow, None
        if shadow is not None and shadow.ended is None:
            await shadow.close(REMOVED)
            _log("shadow ended", shadow)

    def _wanted(self, engine: SearchEngine) -> ShadowTerms | None:
        """Return the shadow bundle and the share that the file `SHADOW` contains.

        If the file cannot be read, return the bundle and the share of the running shadow.
        """
        bundle = engine.bundle
        if bundle.root is None or bundle.key in self._unwritten:
            return self._unwritten.get(bundle.key)
        try:
            terms = read_shadow(bundle.root)
        except PointerUnreadable as error:
            if self._unreadable.get(bundle.key) != str(error):  # log each reason once
                fields = {"gallery": bundle.name, "reason": str(error)}
                logger.error("SHADOW cannot be read", extra={"fields": fields})  # noqa: TRY400
            self._unreadable[bundle.key] = str(error)
            return None if engine.shadow is None else engine.shadow.terms
        self._unreadable.pop(bundle.key, None)
        return terms

    async def _write(self, bundle: Bundle, terms: ShadowTerms | None) -> None:
        """Write `SHADOW`; if this fails, the shadow does not continue after a restart."""
        self._unwritten.pop(bundle.key, None)
        if bundle.root is None:
            return
        try:
            await asyncio.to_thread(write_shadow, bundle.root, terms)
        except OSError:  # for example a read-only mount
            if terms is not None:
                self._unwritten[bundle.key] = terms

    async def _opened_or_refused(self, engine: SearchEngine, terms: ShadowTerms) -> Shadow:
        try:
            return await self._opened(engine, terms)
        except VouchError as error:
            shadow = self._shadow(engine, terms, None, str(error))
            fields = {"gallery": shadow.gallery, "bundle": terms.bundle_id, "reason": str(error)}
            logger.error("shadow refused", extra={"fields": fields})  # noqa: TRY400
            return shadow

    async def _opened(self, engine: SearchEngine, terms: ShadowTerms) -> Shadow:
        live = engine.bundle
        directory = directory_of(live, terms.bundle_id)
        if terms.bundle_id == live.manifest.id:
            raise ActivationRefused(
                f"The bundle {terms.bundle_id} is the one that answers. Name another one."
            )
        opened = await self._opener.successor(live, directory)
        try:
            await asyncio.to_thread(_require_common_item, live, opened.bundle)
        except BaseException:
            await opened.close()
            raise
        tried = Tried(partial(_answer, opened), opened.close)
        return self._shadow(engine, terms, tried)

    def _shadow(
        self,
        engine: SearchEngine,
        terms: ShadowTerms,
        tried: Tried | None,
        ended: str | None = None,
    ) -> Shadow:
        live = engine.bundle
        observe = self._telemetry.shadow(counted_as(live))
        return Shadow(live.name, live.manifest.id, terms, self._room, observe, tried, ended)

    async def _attach(self, engine: SearchEngine, shadow: Shadow) -> None:
        """Attach a shadow to an engine; it replaces the previous shadow."""
        before, engine.shadow = engine.shadow, shadow
        self._last[engine.bundle.key] = shadow
        if before is not None:
            await before.close(REPLACED)
        if engine.closed:  # the engine was closed in the meantime
            await shadow.close(REPLACED)
        elif shadow.ended is None:
            _log("shadow started", shadow)


async def _answer(engine: SearchEngine, data: bytes, parameters: SearchParameters) -> Answer:
    """Return the shadow's answer, computed like an answer to a caller."""
    return (await Lease(engine, engine.bundle).search(data, parameters)).answer


def _require_common_item(live: Bundle, tried: Bundle) -> None:
    """Check that two bundles have an item in common.

    Raises
    ------
    ActivationRefused
    """
    gallery, after = tried.retriever.gallery, None
    while (rows := gallery.page(after, _LOOKED_AT_ONCE)).size:
        served = live.retriever.gallery
        if any(find_row(served, item.id) is not None for item in gallery.items(rows)):
            return
        after = int(rows[-1])
    raise ActivationRefused(
        f"The bundle {tried.manifest.id} has no item in common with the served gallery "
        f"{live.name!r}, so their answers cannot be compared."
    )


def _differs(engine: SearchEngine, terms: ShadowTerms | None) -> bool:
    """Return whether the wanted shadow differs from the shadow of an open engine."""
    now = engine.shadow
    if engine.closed:
        return False
    if terms is None:
        return now is not None
    return terms.bundle_id == engine.bundle.manifest.id or now is None or now.terms != terms


def _log(what: str, shadow: Shadow) -> None:
    fields = {
        "gallery": shadow.gallery,
        "bundle": shadow.terms.bundle_id,
        "share": shadow.terms.share,
        "compared": shadow.compared.n,
    }
    logger.info(what, extra={"fields": fields})
