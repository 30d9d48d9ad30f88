"""What every Cache keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from model_store.predictive import Predictive
from service.encoding.cache import Cache, CacheEntry
from service.schemas import QueryImage


def new_entry(seed: int, dim: int = 5, warnings: Sequence[str] = ()) -> CacheEntry:
    """An entry that no other seed gives."""
    generator = np.random.default_rng(seed)
    direction, variance = generator.standard_normal((2, dim)).astype(np.float32)
    predictive = Predictive(direction, variance**2, *generator.random(2))
    image = QueryImage(format="PNG", width=seed + 1, height=9, warnings=list(warnings))
    return CacheEntry(image, predictive, versions={"digits": seed})


def assert_same_bits(found: CacheEntry | None, wanted: CacheEntry) -> None:
    """Every field of ``found``, not only its serialisation, is that of ``wanted`` to the bit."""
    assert found is not None
    assert found.image == wanted.image
    assert found.versions == wanted.versions
    ours, theirs = found.predictive, wanted.predictive
    for name in ("direction", "variance"):
        got, put = getattr(ours, name), getattr(theirs, name)
        assert got.dtype == put.dtype
        assert got.shape == put.shape
        assert got.tobytes() == put.tobytes()
    numbers = ("concentration", "spherical_variance", "outlier_score")
    assert np.array([getattr(ours, name) for name in numbers]).tobytes() == (
        np.array([getattr(theirs, name) for name in numbers]).tobytes()
    )


@pytest.mark.anyio
class CacheLaws:
    """Every Cache inherits these tests and supplies an empty `cache` with room for 100 entries."""

    async def test_what_was_not_put_is_not_found(self, cache: Cache) -> None:
        await cache.put("here", new_entry(0))
        assert await cache.get("elsewhere") is None

    async def test_what_was_put_comes_back_to_the_last_bit(self, cache: Cache) -> None:
        entry = new_entry(1)
        await cache.put("key", entry)
        assert_same_bits(await cache.get("key"), entry)
        assert_same_bits(await cache.get("key"), entry)

    async def test_a_query_without_detector_comes_back_too(self, cache: Cache) -> None:
        known = new_entry(2, warnings=["Grün, 5 µm: „ß“."]).predictive
        entry = CacheEntry(
            QueryImage(format="TIFF", width=1, height=2, warnings=['„ß“ & \u2028 \\ " µ']),
            replace(known, spherical_variance=0.0, outlier_score=float("nan")),
        )
        await cache.put("key", entry)
        assert_same_bits(await cache.get("key"), entry)

    async def test_keys_do_not_mix(self, cache: Cache) -> None:
        entries = {f"vouch:{i:02d}": new_entry(i, dim=2 + i % 5) for i in range(20)}
        for key, entry in entries.items():
            await cache.put(key, entry)
        for key, entry in entries.items():
            assert_same_bits(await cache.get(key), entry)

    async def test_the_last_put_counts(self, cache: Cache) -> None:
        for seed in (3, 4):
            await cache.put("key", new_entry(seed))
        assert_same_bits(await cache.get("key"), new_entry(4))

    async def test_what_was_removed_is_not_found(self, cache: Cache) -> None:
        for key in ("k", "other"):
            await cache.put(key, new_entry(3))
        await cache.remove("k")
        await cache.remove("never there")
        assert await cache.get("k") is None
        assert await cache.get("other") is not None

    async def test_requests_at_the_same_time_do_not_mix(self, cache: Cache) -> None:
        async def use(seed: int) -> None:
            await cache.put(f"key-{seed}", new_entry(seed))
            assert_same_bits(await cache.get(f"key-{seed}"), new_entry(seed))

        await asyncio.gather(*map(use, range(40)))
