"""Servers that are taken for Redis and answer nonsense, of one kind after the other."""

from __future__ import annotations

import itertools
import time

import httpx2
import numpy as np

from service.redis_calls import REST_AFTER_FAILURE_S
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.questions import content
from tests.end_to_end.replicas import thumbnails
from tests.torture.fake_redis import NONSENSE, NoRedis
from tests.torture.outcome import Outcome, Place

FIRST_SERVER_ERROR = 500
SETTINGS = {"VOUCH_CACHE_BYTES": "0", "VOUCH_DECODERS": "1", "VOUCH_RATE_LIMIT": "1000000/day"}


def attack(place: Place, seconds: float, seed: int) -> Outcome:
    """Search, list and ask for readiness beside each kind, with and without a polite greeting.

    Each kind is gone on with until the service has asked, since after a failure it leaves Redis
    alone for a while; kinds come in an order by the seed, until the time is over.
    """
    outcome = Outcome()
    pictures = thumbnails(place.bundle, 6, seed)
    with Service(place.bundle, place.folder / "alone.log", SETTINGS) as service:
        alone = [content(service.answer(picture)) for picture in pictures]
    statuses: list[int] = []
    kinds = list(itertools.product((True, False), NONSENSE))
    order = np.random.default_rng(seed).permutation(len(kinds)).tolist()
    redis = NoRedis(b"", greets=False)
    done: set[str] = set()
    settings = SETTINGS | {"VOUCH_REDIS_URL": redis.url}
    with Service(place.bundle, place.folder / "service.log", settings) as service:
        until = time.monotonic() + seconds
        for greets, kind in (kinds[place] for place in order):
            if done and time.monotonic() > until:
                break
            redis.say(NONSENSE[kind], greets=greets)
            answers = _asked(service, redis, pictures)
            statuses += [answer.status_code for answer in answers]
            outcome.violations += [
                f"{kind}: {answer.status_code} to {answer.request.url.path}: {answer.text[:200]}"
                for answer in answers
                if answer.status_code != httpx2.codes.OK
            ]
            outcome.violations += _others(kind, answers, alone)
            done.add(kind)
    redis.close()
    outcome.n = len(statuses)
    n_5xx = sum(status >= FIRST_SERVER_ERROR for status in statuses)
    outcome.figures |= {"kinds": len(done), "answered 5xx": n_5xx}
    return outcome


def _asked(service: Service, redis: NoRedis, pictures: list[bytes]) -> list[httpx2.Response]:
    """The answers to searches, lists and questions for readiness until Redis was asked, and one."""
    answers: list[httpx2.Response] = []
    until, is_last = time.monotonic() + TIMEOUT_S, False
    while not is_last:
        is_last = redis.n_said > 0
        if time.monotonic() > until:
            raise TimeoutError("Redis is not asked any more")
        answers += [service.ask(picture) for picture in pictures]
        answers += [service.http.get("/v1/galleries"), service.http.get("/readyz")]
        time.sleep(REST_AFTER_FAILURE_S / 10)
    return answers


def _others(kind: str, answers: list[httpx2.Response], alone: list[dict[str, object]]) -> list[str]:
    """Violations where a search was answered otherwise than without a Redis."""
    searches = [answer for answer in answers if answer.request.method == "POST"]
    return [
        f"{kind}: another answer than alone"
        for number, answer in enumerate(searches)
        if answer.status_code == httpx2.codes.OK
        and content(answer.json()) != alone[number % len(alone)]
    ]
