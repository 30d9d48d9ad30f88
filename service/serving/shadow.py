"""A shadow bundle, which answers a share of a gallery's queries for comparison only.

A shadow bundle gets a query after the served bundle has answered the query. The query waits until
the service computes and encodes nothing for callers. If the service stays busy, or too many queries
wait, the query is dropped. No caller sees the shadow's answers.
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

from model_store.answers import Answer, ComparedAnswers, Said
from model_store.bundles.directory import ShadowTerms
from model_store.messages import ChangeReason
from service.serving.queries import SearchParameters, SearchResult
from service.serving.reviewing import is_drawn

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
