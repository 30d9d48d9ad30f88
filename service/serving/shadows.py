"""Starts and ends the shadow bundles of all galleries, and restores them after a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar

from model_store.answers import Answer, ComparedAnswers, Said
from model_store.bundles.bundle import Bundle
from model_store.bundles.operator import ShadowTerms, read_shadow, write_shadow
from model_store.errors import (
    ActivationRefused,
    ItemNotFound,
    PointerUnreadable,
    ShadowNotFound,
    VouchError,
)
from model_store.gallery import Gallery
from model_store.verdicts import ChangeReason
from service.encoding.cache import Cache, CacheEntry
from service.observability.metrics import Telemetry, counted_as

from .engine import SearchEngine
from .lease import Lease
from .queries import SearchParameters, SearchResult
from .reviewing import is_drawn
from .served import Opener, directory_of

logger = logging.getLogger(__name__)

MOST_WAITING = 64
MOST_WAITING_BYTES = 32 * 2**20
"""Maximum number of waiting queries, and maximum total size of their images in bytes. Further
queries are dropped."""

LOOK_EVERY_S = 0.01
PATIENCE_S = 1.0
"""Seconds between two checks for spare capacity, and seconds that a query waits for spare capacity
before it is dropped."""

ANSWER_TIMEOUT_S = 10.0
"""Timeout of a shadow answer in seconds."""

N_RECENT = 100
"""Maximum number of changed answers that are listed."""

MOST_REMEMBERED = 10_000
"""Maximum number of query ids stored. A query is not compared again while its id is stored."""

Outcome = Literal["compared", "dropped", "failed"]
Observe = Callable[[Outcome, tuple[Said, Said, ChangeReason | None] | None], None]
"""Callback for every query drawn for the shadow. If the shadow has answered, the second argument
contains the two answers, and a reason if the answers differ."""


@dataclass(frozen=True, slots=True)
class ChangedQuery:
    """A query to which the shadow bundle and the served bundle give different answers.

    Attributes
    ----------
    at : time of the comparison, seconds since 1970.
    """

    query_id: str
    at: float
    reason: ChangeReason
    old: Said
    new: Said


@dataclass(frozen=True, slots=True)
class SpareRoom:
    """The spare capacity of the service, which shadows use.

    Attributes
    ----------
    is_spare : returns True if the service computes and encodes nothing for callers.
    turn : lock that all shadows share, so that only one shadow answers at a time.
    """

    is_spare: Callable[[], bool]
    turn: asyncio.Lock


@dataclass(frozen=True, slots=True)
class Tried:
    """An open shadow bundle.

    Attributes
    ----------
    answer : returns the answer to an image.
    close : releases the bundle.
    """

    answer: Callable[[bytes, SearchParameters], Awaitable[Answer]]
    close: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Asked:
    data: bytes
    parameters: SearchParameters
    said: Said


class Shadow:
    """Sends queries to a shadow bundle, and counts its answers.

    Parameters
    ----------
    gallery, live_id : name of the gallery, and id of the served bundle.
    tried : the shadow bundle; None if it could not be opened (then ``ended`` has the reason).

    Attributes
    ----------
    ended : why the shadow ended; None while it runs.
    ended_at, since : seconds since 1970.
    n : number of queries drawn for the shadow, by outcome.
    recent : changed answers, oldest first; empty after the end.
    """

    def __init__(
        self,
        gallery: str,
        live_id: str,
        terms: ShadowTerms,
        room: SpareRoom,
        observe: Observe,
        tried: Tried | None,
        ended: str | None = None,
    ) -> None:
        self.gallery, self.live_id, self.terms = gallery, live_id, terms
        self._room, self._observe, self._tried = room, observe, tried
        self.since = time.time()
        self.ended, self.ended_at = ended, None if ended is None else self.since
        self.compared = ComparedAnswers()
        self.n: Counter[Outcome] = Counter()
        self.recent: deque[ChangedQuery] = deque(maxlen=N_RECENT)
        self._waiting: OrderedDict[str, _Asked] = OrderedDict()
        self._waiting_bytes = 0
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._more = asyncio.Event()
        self._failures: set[str] = set()
        # A separate context: the task must not inherit the context of the request that starts it.
        self._works = asyncio.create_task(self._work(), context=Context()) if tried else None

    @property
    def n_waiting(self) -> int:
        """Number of queries that wait."""
        return len(self._waiting)

    def offer(self, data: bytes, parameters: SearchParameters, found: SearchResult) -> None:
        """Queue a query if the query is drawn and the queue has room; do not wait.

        Parameters
        ----------
        data : the upload.
        found : the result of the served bundle.
        """
        query_id = found.query_id
        if self.ended is not None or query_id in self._seen:
            return
        if not is_drawn(f"shadow {self.terms.bundle_id}", query_id, self.terms.share):
            return
        size = self._waiting_bytes + len(data)
        if len(self._waiting) >= MOST_WAITING or size > MOST_WAITING_BYTES:
            self._count("dropped")
            return
        self._seen[query_id] = None
        if len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)
        self._waiting[query_id] = _Asked(data, parameters, Said.of(found.answer))
        self._waiting_bytes = size
        self._more.set()

    def forget(self, query_id: str) -> None:
        """Delete a query on request; the counts of compared queries do not change."""
        self._seen.pop(query_id, None)
        self._take(query_id)
        kept = [one for one in self.recent if one.query_id != query_id]
        self.recent.clear()
        self.recent.extend(kept)

    async def close(self, why: str) -> None:
        """End the shadow and release its bundle; the counts of the shadow are kept."""
        if self.ended is not None:
            return
        self.ended, self.ended_at = why, time.time()
        if self._works is not None:
            self._works.cancel()
            await asyncio.gather(self._works, return_exceptions=True)
        self._waiting.clear()
        self._seen.clear()
        self.recent.clear()
        if self._tried is not None:
            await self._tried.close()
            self._tried = None

    async def _work(self) -> None:
        while True:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
            async with self._room.turn:
                is_spare = await self._spared()
                query_id = next(iter(self._waiting), None)
                asked = None if query_id is None else self._take(query_id)
                if query_id is None or asked is None:  # the query was deleted
                    continue
                if is_spare:
                    await self._compare(query_id, asked)
                else:
                    self._count("dropped")

    async def _spared(self) -> bool:
        """Wait for spare capacity, at most `PATIENCE_S`; return whether there is spare capacity."""
        for _ in range(round(PATIENCE_S / LOOK_EVERY_S)):
            await asyncio.sleep(LOOK_EVERY_S)  # wait first, so that the live answer is sent
            if self._room.is_spare():
                return True
        return False

    async def _compare(self, query_id: str, asked: _Asked) -> None:
        if self._tried is None:
            return
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._tried.answer(asked.data, asked.parameters)
            new = Said.of(answer)
        except Exception as error:  # no caller waits for a shadow answer
            self._count("failed")
            self._log_once(type(error).__name__)
            return
        reason = self.compared.add(asked.said, new)
        self._count("compared", (asked.said, new, reason))
        if reason is not None and query_id in self._seen:  # unless the query was deleted
            self.recent.append(ChangedQuery(query_id, time.time(), reason, asked.said, new))

    def _take(self, query_id: str) -> _Asked | None:
        """Remove a waiting query, and return it; None if the query is not waiting."""
        asked = self._waiting.pop(query_id, None)
        self._waiting_bytes -= 0 if asked is None else len(asked.data)
        return asked

    def _count(
        self, outcome: Outcome, both: tuple[Said, Said, ChangeReason | None] | None = None
    ) -> None:
        self.n[outcome] += 1
        self._observe(outcome, both)

    def _log_once(self, failure: str) -> None:
        if failure not in self._failures:
            self._failures.add(failure)
            fields = {
                "gallery": self.gallery,
                "bundle": self.terms.bundle_id,
                "reason": failure,
            }
            logger.warning("no answer in the shadow", extra={"fields": fields})


T = TypeVar("T")

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
        self._tasks: set[asyncio.Task[Any]] = set()

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
        return await asyncio.shield(self._spawn(self._start(engine, terms)))

    async def end(self, engine: SearchEngine) -> Shadow:
        """End the shadow of an engine's gallery, and return its result.

        Raises
        ------
        ShadowNotFound
        """
        return await asyncio.shield(self._spawn(self._end(engine)))

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
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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

    def _spawn(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


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
        if any(_has(live.retriever.gallery, item.id) for item in gallery.items(rows)):
            return
        after = int(rows[-1])
    raise ActivationRefused(
        f"The bundle {tried.manifest.id} has no item in common with the served gallery "
        f"{live.name!r}, so their answers cannot be compared."
    )


def _has(gallery: Gallery, item_id: str) -> bool:
    try:
        gallery.row(item_id)
    except ItemNotFound:
        return False
    return True


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
