"""Rate limits: requests counted in Redis for all replicas, and in this process as well."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limits import RateLimitItem

from service.redis_calls import RedisCalls

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

MAX_CALLERS = 100_000
"""Callers that one process counts for, a few hundred bytes each; who was idle longest goes."""


MAX_COUNT = 2**53
"""Beyond what can be counted."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The number of a caller's requests in the current period, against its limit.

    Attributes
    ----------
    limit : requests allowed in a period.
    count : requests in this period so far, this one included.
    reset_s : seconds until the next period.
    """

    limit: int
    count: int
    reset_s: float

    @property
    def exceeded(self) -> bool:
        """True if this request is beyond the limit."""
        return self.count > self.limit

    def headers(self) -> dict[str, str]:
        """``RateLimit-*``, and ``Retry-After`` where there is something to wait for."""
        reset = str(max(1, math.ceil(self.reset_s)))
        fields = {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(max(0, self.limit - self.count)),
            "RateLimit-Reset": reset,
        }
        return {**fields, "Retry-After": reset} if self.exceeded else fields


class Tally:
    """One caller's count in one period, kept here so that it survives a Redis that forgets."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.seen = 0
        self._lost = 0

    def settle(self, before: int, shared: int | None, n: int = 1) -> int:
        """The count of a request, or of ``n``; of none, that of those before.

        Parameters
        ----------
        before : `seen` when the request was sent to Redis.
        shared : the count there; None if it could not be had.
        """
        if shared is None:
            self.seen += n
            return self.seen
        if shared + self._lost < before + n:  # it has forgotten: counts only grow
            self._lost = before + n - shared
        count = shared + self._lost
        self.seen = max(self.seen, count)
        return count


class Tallies:
    """The tallies of the callers that asked last, ``max_callers`` at most."""

    def __init__(self, max_callers: int = MAX_CALLERS) -> None:
        self._max_callers = max_callers
        self._tallies: OrderedDict[tuple[str, RateLimitItem], Tally] = OrderedDict()

    def of(self, caller: str, rate: RateLimitItem, period: int) -> Tally:
        """The caller's, in ``period``."""
        tally = self._tallies.pop((caller, rate), None)
        if tally is None or tally.period != period:
            tally = Tally(period)
        self._tallies[caller, rate] = tally
        if len(self._tallies) > self._max_callers:
            self._tallies.popitem(last=False)
        return tally


class Rates:
    """Counts requests in periods of the clock that are the same for everyone.

    A caller may therefore send the requests of two periods in quick succession, around the boundary
    of the periods. In return a count is one number: one round trip to Redis, and an exact
    ``Retry-After``.

    This process remembers how far a caller had come. If Redis is killed or restarts empty, requests
    counted here still count; while it is gone, replicas only stop knowing of each other.
    """

    def __init__(self, redis_url: str | None, timeout_s: float) -> None:
        self._tallies = Tallies()
        self._calls = RedisCalls(timeout_s, "counting")
        self._pool: ConnectionPool | None = None
        if redis_url is not None:
            # Slow to import, and many have no Redis.
            from limits.aio.storage import RedisStorage  # noqa: PLC0415
            from redis.asyncio import ConnectionPool  # noqa: PLC0415
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415

            self._pool = ConnectionPool.from_url(
                redis_url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
            )
            self._shared = RedisStorage(
                "async+redis://",
                implementation="redispy",
                key_prefix="vouch:rate",
                connection_pool=self._pool,  # type: ignore[arg-type] # documented, not annotated
            )

    async def count(self, caller: str, rate: RateLimitItem, n: int = 1) -> Standing:
        """Count ``n`` requests of ``caller``, a key's id or an address; never raises.

        ``n`` = 0 only reads the count.
        """
        length = rate.get_expiry()
        period, passed = divmod(time.time(), length)
        tally = self._tallies.of(caller, rate, int(period))
        before = tally.seen
        shared = await self._increment_shared(rate.key_for(caller, int(period)), length, n)
        return Standing(rate.amount, tally.settle(before, shared, n), length - passed)

    async def close(self) -> None:
        """Close connections."""
        if self._pool is not None:
            await self._pool.aclose()

    async def _increment_shared(self, key: str, life_s: int, n: int) -> int | None:
        """The count in Redis; None where it cannot be had in time."""
        if self._pool is None:
            return None
        shared = self._shared
        count = await self._calls.ask(
            (lambda: shared.incr(key, life_s, n)) if n else (lambda: shared.get(key))
        )
        # Whatever else it says is no count; see `RedisCalls`.
        return count if type(count) is int and 0 <= count < MAX_COUNT and count >= n else None
