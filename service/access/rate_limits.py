"""Rate limits: requests are counted in Redis for all replicas, and in this process."""

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
"""Maximum number of callers whose requests one process counts. The count of a caller needs a few
hundred bytes. The longest idle caller is dropped first."""


MAX_COUNT = 2**53
"""A count from Redis is invalid if it is not below this number."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The number of a caller's requests in the current period, and the limit.

    Attributes
    ----------
    limit : number of requests that are allowed in a period.
    count : number of requests in this period so far, including this request.
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
        """Return the headers ``RateLimit-*``, and ``Retry-After`` if the limit is exceeded."""
        reset = str(max(1, math.ceil(self.reset_s)))
        fields = {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(max(0, self.limit - self.count)),
            "RateLimit-Reset": reset,
        }
        return {**fields, "Retry-After": reset} if self.exceeded else fields


class Tally:
    """One caller's count in one period; the count survives a restart of Redis."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.seen = 0
        self._lost = 0

    def settle(self, before: int, shared: int | None, n: int = 1) -> int:
        """Add ``n`` requests to the count, and return the new count.

        Parameters
        ----------
        before : value of `seen` before Redis was called.
        shared : count in Redis; None if Redis did not answer.
        """
        if shared is None:
            self.seen += n
            return self.seen
        if shared + self._lost < before + n:  # the count fell: Redis has lost data
            self._lost = before + n - shared
        count = shared + self._lost
        self.seen = max(self.seen, count)
        return count


class Tallies:
    """The counts of at most ``max_callers`` callers; the longest idle caller is dropped first."""

    def __init__(self, max_callers: int = MAX_CALLERS) -> None:
        self._max_callers = max_callers
        self._tallies: OrderedDict[tuple[str, RateLimitItem], Tally] = OrderedDict()

    def of(self, caller: str, rate: RateLimitItem, period: int) -> Tally:
        """Return the caller's count in ``period``."""
        tally = self._tallies.pop((caller, rate), None)
        if tally is None or tally.period != period:
            tally = Tally(period)
        self._tallies[caller, rate] = tally
        if len(self._tallies) > self._max_callers:
            self._tallies.popitem(last=False)
        return tally


class Rates:
    """Counts requests in fixed periods of time; the periods begin at the same time for all callers.

    Around the start of a period, a caller can send twice the limit in a short time. A sliding
    window would prevent this. But fixed periods need only one number and one round trip to Redis,
    and ``Retry-After`` is exact.

    Each process also counts the requests in its own memory. If Redis restarts without its data,
    the counts in memory stay valid. While Redis is unreachable, each replica counts only its own
    requests.

    Attributes
    ----------
    calls : the calls of Redis, which know whether Redis refuses to count.
    """

    def __init__(self, redis_url: str | None, timeout_s: float) -> None:
        self._tallies = Tallies()
        self.calls = RedisCalls(timeout_s, "counting")
        self._pool: ConnectionPool | None = None
        if redis_url is not None:
            # Slow to import, and not needed without Redis.
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
        """Count in Redis; return None if Redis does not answer in time."""
        if self._pool is None:
            return None
        shared = self._shared
        count = await self.calls.ask(
            (lambda: shared.incr(key, life_s, n)) if n else (lambda: shared.get(key)),
            "write" if n else "read",
        )
        # Redis may send a wrong reply, for example text or a smaller number; see `RedisCalls`.
        return count if type(count) is int and n <= count < MAX_COUNT else None
