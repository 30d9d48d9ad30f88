"""Cache of predictive distributions, so that images with equal bytes are encoded only once.

A hit returns the same bits as the first computation. A key contains all inputs of the computation:
encoder, decision layer and image bytes. Concurrent calls with one key share one computation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from model_store.decision.calibration import FILES
from model_store.predictive import Predictive
from model_store.retriever import Retriever
from service.redis_calls import RedisCalls
from service.schemas import QueryImage, QueryText
from service.settings import Settings

T = TypeVar("T")

_HEADER = struct.Struct("<32sI")
_Described = tuple[QueryImage | None, QueryText | None, Mapping[str, int]]
_DESCRIBED: TypeAdapter[_Described] = TypeAdapter(_Described)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An encoded query: its predictive distribution, and a description of its image or text.

    Attributes
    ----------
    versions : version of each gallery that answered the query, at the last answer. The keys are
        those of `Bundle.key`.
    """

    image: QueryImage | None
    predictive: Predictive
    text: QueryText | None = None
    versions: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self, key: str, secret: bytes = b"") -> bytes:
        """Return the entry as bytes: seal, length of the JSON, JSON, predictive distribution."""
        described = _DESCRIBED.dump_json((self.image, self.text, self.versions))
        body = described + self.predictive.to_bytes()
        return _HEADER.pack(_seal(key, body, secret), len(described)) + body

    @classmethod
    def from_bytes(cls, data: bytes, key: str, secret: bytes = b"") -> CacheEntry | None:
        """Read the bytes of `to_bytes`; None if the bytes, the key or the secret are wrong."""
        try:
            seal, length = _HEADER.unpack_from(data)
            body = memoryview(data)[_HEADER.size :]
            if not hmac.compare_digest(seal, _seal(key, body, secret)):
                return None
            image, text, versions = _DESCRIBED.validate_json(bytes(body[:length]))
        except (struct.error, ValueError):
            return None
        predictive = Predictive.from_bytes(body[length:])
        return None if predictive is None else cls(image, predictive, text, versions)


def _seal(key: str, body: bytes | memoryview, secret: bytes) -> bytes:
    """Return an HMAC of the key and the entry; only owners of ``secret`` can compute the HMAC."""
    named = hashlib.sha256(key.encode()).digest()
    seal = hmac.new(hashlib.sha256(secret).digest(), named, "sha256")
    seal.update(body)
    return seal.digest()


class Cache(Protocol):
    """A store of encoded images.

    `get` returns the whole entry that `put` stored under this key, or None. Neither method raises
    if the store is unreachable.
    """

    @property
    def is_shared(self) -> bool:
        """Return whether other processes can put entries into the store."""

    @property
    def state(self) -> str:
        """Return the name of the store and its state as text."""

    @property
    def is_reachable(self) -> bool:
        """Return whether the store answered the last call; if not, `get` may miss entries."""

    async def get(self, key: str) -> CacheEntry | None:
        """The entry, or None."""

    async def put(self, key: str, entry: CacheEntry) -> None:
        """Keep the entry, if possible."""

    async def remove(self, key: str) -> None:
        """Delete the entry, if possible."""

    async def close(self) -> None:
        """Close connections."""


ENTRY_BYTES = 2000
"""Memory of an entry without its arrays, in bytes: the key and the Python objects."""


class ProcessCache:
    """The least recently used entries are dropped when ``max_bytes`` are exceeded.

    Parameters
    ----------
    life_s : lifetime of an entry, in seconds.
    """

    state = "process"
    is_reachable = True
    is_shared = False

    def __init__(self, max_bytes: int, life_s: float = math.inf) -> None:
        self._max_bytes, self._life_s = max_bytes, life_s
        self._bytes = 0
        self._entries: OrderedDict[str, tuple[CacheEntry, int, float]] = OrderedDict()

    async def get(self, key: str) -> CacheEntry | None:
        """The entry, or None."""
        found = self._entries.get(key)
        if found is None:
            return None
        entry, _, put_at = found
        if time.monotonic() - put_at >= self._life_s:
            await self.remove(key)
            return None
        self._entries.move_to_end(key)
        return entry

    async def put(self, key: str, entry: CacheEntry) -> None:
        """Store the entry; drop old entries if memory is full."""
        size = ENTRY_BYTES + entry.predictive.direction.nbytes + entry.predictive.variance.nbytes
        replaced = self._entries.pop(key, None)
        self._bytes += size - (replaced[1] if replaced else 0)
        self._entries[key] = (entry, size, time.monotonic())
        while self._bytes > self._max_bytes:
            _, (_, dropped, _) = self._entries.popitem(last=False)
            self._bytes -= dropped

    async def remove(self, key: str) -> None:
        """Delete the entry."""
        removed = self._entries.pop(key, None)
        self._bytes -= removed[1] if removed else 0

    async def close(self) -> None:
        """There is nothing to close."""


class RedisCache:
    """Entries in Redis, shared by replicas.

    If Redis does not answer, this process finds its own entries in memory. A cursor from a recent
    answer therefore stays valid. If Redis answers, this process uses memory only for entries that
    Redis did not store. An entry removed by another replica therefore stays removed.

    Parameters
    ----------
    max_bytes : maximum size of the entries in memory.
    counting : the calls of Redis that count requests; `state` says whether Redis refuses them.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        timeout_s: float,
        ttl_s: int,
        secret: bytes = b"",
        max_bytes: int = 0,
        counting: RedisCalls | None = None,
    ) -> None:
        # Slow to import, and only this class needs it.
        from redis.asyncio import Redis  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        self._redis = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._calls = RedisCalls(timeout_s, "answering")
        self._writers = [self._calls, *([] if counting is None else [counting])]
        self._ttl_s = ttl_s
        self._secret = secret
        self._copies, self._not_taken = (ProcessCache(max_bytes // 2, ttl_s) for _ in range(2))

    @property
    def state(self) -> str:
        """Return the text ``redis``, with a note if the last attempt or the last write failed."""
        if not self.is_reachable:
            return "redis (unreachable)"
        refuses = any(calls.refuses_writes for calls in self._writers)
        return "redis (refuses writes)" if refuses else "redis"

    @property
    def is_reachable(self) -> bool:
        """See `Cache.is_reachable`."""
        return not self._calls.failed_last

    async def get(self, key: str) -> CacheEntry | None:
        """Return the entry; None if there is no valid entry."""
        data = await self._calls.ask(lambda: self._redis.get(key))
        found = CacheEntry.from_bytes(data, key, self._secret) if isinstance(data, bytes) else None
        if found is None:
            found = await self._not_taken.get(key)
        if found is None and not self.is_reachable:
            found = await self._copies.get(key)
        return found

    async def put(self, key: str, entry: CacheEntry) -> None:
        """Store the entry in Redis, or in memory if Redis does not store it."""
        data = entry.to_bytes(key, self._secret)
        taken = await self._calls.ask(lambda: self._redis.set(key, data, ex=self._ttl_s), "write")
        kept, other = self._copies, self._not_taken
        if taken is not True:
            kept, other = other, kept
        await kept.put(key, entry)
        await other.remove(key)

    async def remove(self, key: str) -> None:
        """Delete the entry in memory, and also in Redis if Redis is reachable."""
        for held in (self._copies, self._not_taken):
            await held.remove(key)
        await self._calls.ask(lambda: self._redis.delete(key), "delete")

    async def close(self) -> None:
        """Close connections."""
        await self._redis.aclose()


def open_cache(settings: Settings, counting: RedisCalls | None = None) -> Cache:
    """Return the cache that the settings configure; for ``counting``, see `RedisCache`."""
    if settings.redis_url is None:
        return ProcessCache(settings.cache_bytes)
    secret = settings.cache_secret.get_secret_value() if settings.cache_secret else ""
    return RedisCache(
        settings.redis_url.get_secret_value(),
        settings.redis_timeout_s,
        settings.cache_ttl_s,
        secret.encode(),
        settings.cache_bytes,
        counting,
    )


KEY_VERSION = 11
"""The version of the cache entries; every key contains it. The version must be increased if the
format of the entries changes, or if the numbers in the entries are computed differently."""


def key_prefix(retriever: Retriever, gallery: str = "") -> str:
    """Return the prefix of the cache keys of one encoder and its outlier detectors.

    Cached images stay valid when the gallery changes or is compacted.

    Parameters
    ----------
    gallery : id of a gallery with a separate cache. Hits in a shared cache would show which images
        other galleries received.
    """
    digest = hashlib.sha256(retriever.encoder.fingerprint.encode() + gallery.encode())
    if retriever.text is not None:
        digest.update(f"text {retriever.text.fingerprint}".encode())
    for kind in FILES:
        calibration = retriever.for_kind(kind).calibration
        if calibration is not None:
            digest.update(f"{kind} {calibration.outlier_fingerprint()}".encode())
    return f"vouch:{KEY_VERSION}:{digest.hexdigest()[:32]}"


@dataclass(eq=False, slots=True)
class _Flight(Generic[T]):
    work: asyncio.Task[T]
    waiting: int = 0


class SingleFlight(Generic[T]):
    """A call waits for a running computation of the same key.

    The computation is cancelled when its last waiting call is cancelled.

    Parameters
    ----------
    joined : callback for each call that joins a running computation.
    """

    def __init__(self, joined: Callable[[], None] = lambda: None) -> None:
        self._flights: dict[str, _Flight[T]] = {}
        self._joined = joined

    async def do(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, or of the running computation of ``key``."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(work()))
            self._flights[key] = flight
            begun = flight
            flight.work.add_done_callback(lambda _: self._remove(key, begun))
        else:
            self._joined()
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.work)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.work.done():
                self._remove(key, flight)
                flight.work.cancel()

    def _remove(self, key: str, flight: _Flight[T]) -> None:
        """Remove the computation of ``key``, unless a newer computation has replaced it."""
        if self._flights.get(key) is flight:
            del self._flights[key]
