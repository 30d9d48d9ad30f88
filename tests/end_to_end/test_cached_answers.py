"""A hit is its miss, to the last bit; and Redis may come and go."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from end_to_end.processes import PATIENCE_S, Redis, Service, wait_until


def content(answer: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the cache. JSON carries every bit of a double."""
    names = ("verdict", "query", "results", "result_set", "bundle", "gallery")
    shown = {name: answer[name] for name in names}
    return {**shown, "query": {**answer["query"], "id": "that of the file's bytes"}}


def with_redis(redis: Redis) -> dict[str, str]:
    return {"VOUCH_REDIS_URL": redis.url, "VOUCH_REDIS_TIMEOUT_S": str(PATIENCE_S)}


def unseen(image: bytes) -> bytes:
    """The same picture in another file: what follows a picture's end is not looked at."""
    return image + uuid.uuid4().bytes


def assert_hits_equal_misses(service: Service, images: list[bytes]) -> None:
    misses = [service.answer(image) for image in images]
    hits = [service.answer(image) for image in images]
    assert {answer["cache"] for answer in misses} == {"miss"}
    assert {answer["cache"] for answer in hits} == {"hit"}
    assert list(map(content, hits)) == list(map(content, misses))


def test_in_the_process(service: Service, samples: list[bytes]) -> None:
    assert_hits_equal_misses(service, [unseen(image) for image in samples])


def test_in_redis_and_from_replica_to_replica(
    service: Service,
    digits_bundle: Path,
    tmp_path: Path,
    redis_server: Redis,
    samples: list[bytes],
) -> None:
    settings = with_redis(redis_server)
    with Service(digits_bundle, tmp_path / "one.log", settings) as one:
        assert_hits_equal_misses(one, samples)
    with Service(digits_bundle, tmp_path / "other.log", settings) as other:
        for image in samples:
            found = other.answer(image)
            assert found["cache"] == "hit"
            assert content(found) == content(service.answer(unseen(image)))


def test_redis_comes_is_killed_and_comes_back(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis, samples: list[bytes]
) -> None:
    image = samples[0]
    redis_server.kill()
    with Service(digits_bundle, tmp_path / "log", with_redis(redis_server)) as service:
        before = service.answer(image)
        assert before["cache"] == "miss"
        assert cache_state(service) == "redis (unreachable)"
        for life in ("first", "second"):
            with Redis(tmp_path / f"{life}.log", redis_server.port) as redis:
                wait_until(lambda: service.answer(image)["cache"] == "hit", service)
                assert content(service.answer(image)) == content(before)
                assert cache_state(service) == "redis"
                redis.kill()
                without = [service.answer(image) for _ in range(5)]
                assert {answer["cache"] for answer in without} == {"miss"}
                assert all(content(answer) == content(before) for answer in without)
                assert service.ask(b"text").status_code == 415
                assert cache_state(service) == "redis (unreachable)"
        assert errors(service) == []


def errors(service: Service) -> list[str]:
    """Log lines above a warning."""
    lines = map(json.loads, service.printed().splitlines())
    return [str(line) for line in lines if line["level"] in {"error", "critical"}]


def cache_state(service: Service) -> str:
    ready = service.http.get("/readyz")
    assert ready.status_code == 200
    state: str = ready.json()["cache"]
    return state
