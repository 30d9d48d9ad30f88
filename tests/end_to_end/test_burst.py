"""Many callers at once: each gets the answer to its own image, whatever its neighbours send."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from tests.end_to_end.load import at_once
from tests.end_to_end.processes import Service, wait_until
from tests.end_to_end.questions import bad_images, content
from tests.support.killing import halted

N_ROUNDS = 16
N_AT_ONCE = 8
N_AFTERWARDS = 40
N_DIFFERENT = 120
N_CALLERS = 16

Images = dict[str, bytes]


@pytest.fixture(
    scope="module",
    params=[{}, {"VOUCH_PAD_BATCHES": "1"}],
    ids=["as measured", "always in batches"],
)
def fresh(
    digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Service]:
    """A service that remembers no image and is sent no canary."""
    log = tmp_path_factory.mktemp("burst") / "log"
    settings = {"VOUCH_CACHE_BYTES": "0", "VOUCH_CANARY_PERIOD_S": "3600", "VOUCH_DECODERS": "3"}
    with Service(digits_bundle, log, {**settings, **request.param}) as running:
        yield running


def test_a_bad_image_harms_no_other(fresh: Service, own_images: Images) -> None:
    images = list(own_images.values())[: N_ROUNDS * (N_AT_ONCE - 1) + N_AFTERWARDS]
    alone = [content(fresh.answer(image, limit=5)) for image in images]
    bad, remaining = itertools.cycle(bad_images()), iter(zip(images, alone, strict=True))
    rng = np.random.default_rng(1)
    for _ in range(N_ROUNDS):
        sent = [
            (image, 200, answer) for image, answer in itertools.islice(remaining, N_AT_ONCE - 1)
        ]
        refused, status = next(bad)
        sent.insert(int(rng.integers(N_AT_ONCE)), (refused, status, {}))
        responses = at_once(fresh, [image for image, _, _ in sent], N_AT_ONCE)
        assert [response.status_code for response in responses] == [status for _, status, _ in sent]
        for response, (_, status, answer) in zip(responses, sent, strict=True):
            if status == 200:
                assert content(response.json()) == answer
            else:
                assert response.headers["Content-Type"] == "application/problem+json"
    afterwards = list(remaining)
    assert len(afterwards) == N_AFTERWARDS
    responses = at_once(fresh, [image for image, _ in afterwards], N_CALLERS)
    assert answers_of(responses) == [answer for _, answer in afterwards]


def test_each_gets_its_own_answer(fresh: Service, own_images: Images) -> None:
    some = list(own_images)[:N_DIFFERENT]
    shuffled = np.random.default_rng(2).permutation([*some, *some]).tolist()
    responses = at_once(fresh, [own_images[item_id] for item_id in shuffled], N_CALLERS)
    answers = answers_of(responses)
    assert [answer["results"][0]["id"] for answer in answers] == shuffled
    nearest = [answer["results"][0]["similarity"] for answer in answers]
    assert nearest == pytest.approx([1] * len(nearest), abs=2e-6)
    own_hashes = [hashlib.sha256(own_images[item_id]).hexdigest() for item_id in shuffled]
    assert [response.json()["query"]["id"] for response in responses] == own_hashes
    assert len({response.json()["request_id"] for response in responses}) == len(shuffled)


def test_who_waits_for_a_busy_encoder_is_encoded_together(
    fresh: Service, own_images: Images
) -> None:
    images = list(own_images.values())[: 1 + 2 * N_AT_ONCE]
    alone = [content(fresh.answer(image, limit=5)) for image in images]
    [gallery] = fresh.http.get("/readyz").json()["galleries"]
    n_batches, n_images = batches(fresh)
    with ThreadPoolExecutor(len(images)) as callers, halted(fresh.encoder()):
        asked = [callers.submit(fresh.ask, image, limit=5) for image in images]
        fresh.wait_for_requests(len(images))
        time.sleep(0.5)  # the last of them is decoded
    assert answers_of([one.result() for one in asked]) == alone
    n_more_batches, n_more_images = np.subtract(batches(fresh), (n_batches, n_images))
    assert n_more_images == len(images)
    if gallery["batch_size"] > 1:  # it is what paid off when it was measured
        assert n_more_batches < len(images)


def test_identical_images_are_encoded_once(fresh: Service, own_images: Images) -> None:
    image = next(iter(own_images.values()))
    _, before = batches(fresh)
    joins = "vouch_single_flight_joins_total"
    n_joins = fresh.metric(joins)
    with ThreadPoolExecutor(N_CALLERS) as callers, halted(fresh.encoder()):
        asked = [callers.submit(fresh.ask, image, limit=5) for _ in range(N_CALLERS)]
        # A request is at work from its head on, and joins once its image is there.
        wait_until(lambda: fresh.metric(joins) == n_joins + N_CALLERS - 1, fresh)
    [answer, *others] = answers_of([one.result() for one in asked])
    assert others == [answer] * (N_CALLERS - 1)
    assert batches(fresh)[1] == before + 1


def batches(service: Service) -> tuple[float, float]:
    """How many batches, and how many images in them, the encoder has been given."""
    return service.metric("vouch_batch_size_count"), service.metric("vouch_batch_size_sum")


def answers_of(responses: list[httpx2.Response]) -> list[dict[str, Any]]:
    return [content(response.raise_for_status().json()) for response in responses]
