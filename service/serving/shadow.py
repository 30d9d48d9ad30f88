"""A bundle that answers a share of a gallery's queries in the shadow, for comparison alone.

A query is put to it once the live answer is there and nothing live is computed or encoded; where
that does not come soon, or too many wait, the query is dropped. Nothing of it reaches a caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Literal

from model_store.answers import Answer
from model_store.bundles.shadow import ShadowTerms
from model_store.compared_answers import ComparedAnswers, Said
from model_store.verdicts import ChangeReason
from service.serving.audit import is_drawn
from service.serving.queries import SearchParameters, SearchResult

logger = logging.getLogger(__name__)

MOST_WAITING = 64
MOST_WAITING_BYTES = 32 * 2**20
"""Queries that wait to be put to a shadow, and the size of their images; more are dropped."""

LOOK_EVERY_S = 0.01
PATIENCE_S = 1.0
"""Between looks for leftover capacity, and after which a query is dropped for want of it."""

ANSWER_TIMEOUT_S = 10.0
"""After which an answer in the shadow is given up."""

N_RECENT = 100
"""Changed answers that are listed."""

MOST_REMEMBERED = 10_000
"""Queries that are known to have been put already: each picture counts once in a while."""

Outcome = Literal["compared", "dropped", "failed"]
Observe = Callable[[Outcome, tuple[Said, Said, ChangeReason | None] | None], None]
"""Told of every query that was drawn, and of both answers where there are two."""


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """A query that the shadow answers otherwise.

    Attributes
    ----------
    at : when, seconds since 1970.
    """

    query_id: str
    at: float
    reason: ChangeReason
    old: Said
    new: Said


@dataclass(frozen=True, slots=True)
class Room:
    """The room that live answers leave.

    Attributes
    ----------
    is_spare : whether nothing live is computed or encoded at the moment.
    turn : of all shadows, one of which answers at a time.
    """

    is_spare: Callable[[], bool]
    turn: asyncio.Lock


@dataclass(frozen=True, slots=True)
class Tried:
    """The bundle that is tried.

    Attributes
    ----------
    answer : to an image.
    close : releases it.
    """

    answer: Callable[[bytes, SearchParameters], Awaitable[Answer]]
    close: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Asked:
    data: bytes
    parameters: SearchParameters
    said: Said


class Shadow:
    """Sends queries to a bundle that is tried, and counts its answers.

    Parameters
    ----------
    gallery, live_id : name of the gallery, and the bundle whose answers callers get.
    tried : None where it could not be opened, for which ``ended`` then is the reason.

    Attributes
    ----------
    ended : why it gets no more queries; None while it does.
    ended_at, since : seconds since 1970.
    n : queries that were drawn, by what became of them.
    recent : answers that changed, oldest first; empty once it has ended.
    """

    def __init__(
        self,
        gallery: str,
        live_id: str,
        terms: ShadowTerms,
        room: Room,
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
        self.recent: deque[ChangedAnswer] = deque(maxlen=N_RECENT)
        self._waiting: OrderedDict[str, _Asked] = OrderedDict()
        self._waiting_bytes = 0
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._more = asyncio.Event()
        self._failures: set[str] = set()
        # A separate context: nothing of it belongs to the request that began it.
        self._works = asyncio.create_task(self._work(), context=Context()) if tried else None

    @property
    def n_waiting(self) -> int:
        """Queries that wait for their turn."""
        return len(self._waiting)

    def offer(self, data: bytes, parameters: SearchParameters, found: SearchResult) -> None:
        """Have a query put to the bundle too, if it is drawn and there is room; never waits.

        Parameters
        ----------
        data : the upload.
        found : the live answer, which is on its way to the caller.
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
        """Forget a query, on request; it stays counted."""
        self._seen.pop(query_id, None)
        self._take(query_id)
        kept = [one for one in self.recent if one.query_id != query_id]
        self.recent.clear()
        self.recent.extend(kept)

    async def close(self, why: str) -> None:
        """Send no more queries, and release it; its counts stay."""
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
                if query_id is None or asked is None:  # forgotten in between
                    continue
                if is_spare:
                    await self._compare(query_id, asked)
                else:
                    self._count("dropped")

    async def _spared(self) -> bool:
        """Wait a while for leftover capacity; whether there is any."""
        for _ in range(round(PATIENCE_S / LOOK_EVERY_S)):
            await asyncio.sleep(LOOK_EVERY_S)  # at first too: the live answer is to be sent
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
        except Exception as error:  # of any kind: no caller waits for it
            self._count("failed")
            self._log_once(type(error).__name__)
            return
        reason = self.compared.add(asked.said, new)
        self._count("compared", (asked.said, new, reason))
        if reason is not None and query_id in self._seen:  # else it was forgotten in between
            self.recent.append(ChangedAnswer(query_id, time.time(), reason, asked.said, new))

    def _take(self, query_id: str) -> _Asked | None:
        """Take a query from those that wait; None where it is none of them."""
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
