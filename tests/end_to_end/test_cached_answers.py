"""A hit is its miss, to the last bit; and Redis may come and go."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import psutil

from tests.end_to_end.load import at_once, sent
from tests.end_to_end.processes import TIMEOUT_S, Redis, Service, wait_until
from tests.end_to_end.questions import content, unseen
from tests.support.killing import halted

N_CALLERS = 8


def with_redis(redis: Redis) -> dict[str, str]:
    return {"VOUCH_REDIS_URL": redis.url, "VOUCH_REDIS_TIMEOUT_S": str(TIMEOUT_S)}


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
                wait_until(lambda: cache_state(service) == "redis", service)
                wait_until(lambda: service.answer(image)["cache"] == "hit", service)
                assert content(service.answer(image)) == content(before)
                redis.kill()
                # The process finds its own entries while Redis does not answer.
                without = [service.answer(image) for _ in range(5)]
                assert all(content(answer) == content(before) for answer in without)
                assert service.ask(b"text").status_code == 415
                assert cache_state(service) == "redis (unreachable)"
        assert errors(service) == []


def test_redis_full_and_full_of_garbage(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis, pictures: list[bytes]
) -> None:
    kept, late = pictures[:8], pictures[8:16]
    with Service(digits_bundle, tmp_path / "log", with_redis(redis_server)) as service:
        assert_hits_equal_misses(service, kept)
        first = [content(service.answer(image)) for image in kept]
        entries = {key: redis_server.client.get(key) for key in redis_server.client.scan_iter()}
        assert len(entries) == len(kept)
        for number, key in enumerate(entries):
            redis_server.client.set(key, (b"", b"garbage", b"\0" * 30_000)[number % 3])
        found = [service.answer(image) for image in kept]
        assert {answer["cache"] for answer in found} == {"miss"}
        assert list(map(content, found)) == first
        assert {key: redis_server.client.get(key) for key in entries} == entries

        redis_server.client.config_set("maxmemory-policy", "noeviction")
        redis_server.client.config_set("maxmemory", 1)
        for image in late:
            once, again = service.answer(image), service.answer(image)
            assert once["cache"] == "miss"
            assert content(once) == content(again)
        found = [service.answer(image) for image in kept]
        assert {answer["cache"] for answer in found} == {"hit"}
        assert list(map(content, found)) == first
        assert errors(service) == []


def test_redis_that_stands_still_and_clients_that_do_not_wait_for_it(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis, pictures: list[bytes]
) -> None:
    """An answer that a client did not wait for must not become that of the next."""
    settings = {**with_redis(redis_server), "VOUCH_REDIS_TIMEOUT_S": "2", "VOUCH_DEADLINE_S": "60"}
    with Service(digits_bundle, tmp_path / "log", settings) as service:
        alone = [content(service.answer(image, limit=5)) for image in pictures]
        for _ in range(3):
            with halted(psutil.Process(redis_server.popen.pid)):
                hasty = [sent(service, image) for image in pictures[:N_CALLERS]]
                service.wait_for_requests(N_CALLERS)
                for connection in hasty:
                    connection.close()
                service.wait_for_requests(0)
            order = np.random.default_rng(4).permutation(len(pictures)).tolist()
            responses = at_once(service, [pictures[number] for number in order], N_CALLERS)
            answers = [content(response.raise_for_status().json()) for response in responses]
            assert answers == [alone[number] for number in order]
        with halted(psutil.Process(redis_server.popen.pid)):
            responses = at_once(service, pictures, N_CALLERS)
        assert [content(response.raise_for_status().json()) for response in responses] == alone
        assert errors(service) == []


def errors(service: Service) -> list[str]:
    """Log lines above a warning."""
    lines = map(json.loads, service.printed().splitlines())
    return [str(line) for line in lines if line["level"] in {"error", "critical"}]


def test_redis_that_refuses_to_count_is_said_while_all_answers_are_cached(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis, samples: list[bytes]
) -> None:
    settings = {**with_redis(redis_server), "VOUCH_RATE_LIMIT": "600/minute"}
    with Service(digits_bundle, tmp_path / "log", settings) as service:
        service.answer(samples[0])
        redis_server.client.config_set("maxmemory", 1)
        assert service.answer(samples[0])["cache"] == "hit"
        assert cache_state(service) == "redis (refuses writes)"


def cache_state(service: Service) -> str:
    ready = service.http.get("/readyz")
    assert ready.status_code == 200
    state: str = ready.json()["cache"]
    return state
