"""A Redis that lies: answers stay those that are given without it."""

from __future__ import annotations

import time

from tests.end_to_end.processes import Redis, Service
from tests.end_to_end.questions import content
from tests.end_to_end.replicas import thumbnails
from tests.torture.fake_redis import LyingRedis
from tests.torture.outcome import Outcome, Place

SHARE = 0.3
"""Of replies that are damaged; after each Redis is left alone for a second."""

PAUSE_S = 0.02
"""Between searches, most of which come in that second."""


def attack(place: Place, seconds: float, seed: int) -> Outcome:
    """Ask for the same pictures again and again, while what Redis replies is damaged."""
    outcome = Outcome()
    pictures = thumbnails(place.bundle, 6, seed)
    settings = {"VOUCH_CACHE_BYTES": "0", "VOUCH_DECODERS": "1"}
    with Service(place.bundle, place.folder / "alone.log", settings) as service:
        alone = [content(service.answer(picture)) for picture in pictures]
    with Redis(place.folder / "redis.log") as redis:
        lying = LyingRedis(redis.port, seed, SHARE)
        settings |= {"VOUCH_REDIS_URL": lying.url, "VOUCH_RATE_LIMIT": "1000000/day"}
        with Service(place.bundle, place.folder / "service.log", settings) as service:
            until = time.monotonic() + seconds
            while not lying.n_damaged or time.monotonic() < until:
                time.sleep(PAUSE_S)
                number = outcome.n % len(pictures)
                response = service.ask(pictures[number])
                outcome.n += 1
                if response.status_code != 200:
                    outcome.violations.append(f"status {response.status_code}: {response.text}")
                elif content(response.json()) != alone[number]:
                    outcome.violations.append(f"another answer than alone: {response.text[:300]}")
        lying.close()
    outcome.figures["damaged replies"] = lying.n_damaged
    return outcome
