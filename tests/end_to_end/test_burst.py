"""Many callers at once: each gets the answer to its own image."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from end_to_end.processes import Service
from end_to_end.questions import search, truncated

from model_store.retriever import Bundle

N_IMAGES = 48
N_CALLERS = 16


@pytest.fixture(scope="module")
def fresh(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has seen no image yet and works on several at a time."""
    log = tmp_path_factory.mktemp("burst") / "log"
    settings = {"VOUCH_WORKERS": "4", "VOUCH_CACHE_BYTES": "0"}
    with Service(digits_bundle, log, settings) as running:
        yield running


@pytest.fixture(scope="module")
def own_images(library: Bundle) -> dict[str, bytes]:
    """Pictures of gallery items, lossless: each is its own nearest neighbour."""
    gallery = library.retriever.gallery
    rows = np.random.default_rng(0).permutation(gallery.n_items)[:N_IMAGES]
    ids = [item.id for item in gallery.items(rows)]
    return {item_id: gallery.thumbnail(item_id).data for item_id in ids}


def ask_at_once(service: Service, images: list[bytes]) -> list[httpx2.Response]:
    """Ask for all ``images`` from many connections."""
    with ThreadPoolExecutor(N_CALLERS) as callers:
        return list(callers.map(lambda image: search(service.http, image, limit=5), images))


def numbers(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("verdict", "query", "results")}


def test_each_gets_its_own_answer(fresh: Service, own_images: dict[str, bytes]) -> None:
    together = [r.json() for r in ask_at_once(fresh, list(own_images.values()))]
    assert {answer["cache"] for answer in together} == {"miss"}
    for item_id, answer in zip(own_images, together, strict=True):
        similarity = {result["id"]: result["similarity"] for result in answer["results"]}
        assert similarity[item_id] == pytest.approx(1, abs=2e-6)
        assert answer["results"][0]["similarity"] == similarity[item_id]
    alone = [fresh.answer(image, limit=5) for image in own_images.values()]
    assert {answer["cache"] for answer in alone} == {"miss"}  # there is no room for a hit
    assert [numbers(answer) for answer in together] == [numbers(answer) for answer in alone]
    assert len({answer["request_id"] for answer in together + alone}) == 2 * N_IMAGES


def test_a_bad_image_harms_no_other(fresh: Service, own_images: dict[str, bytes]) -> None:
    bad = {0: (b"", 400), 1: (b"text", 415), 2: (truncated(), 422), 3: (truncated("PNG"), 422)}
    images, statuses = [], []
    for place, image in enumerate(own_images.values()):
        if place % 3 == 0:
            refused, status = bad[place // 3 % 4]
            images.append(refused)
            statuses.append(status)
        images.append(image)
        statuses.append(200)
    responses = ask_at_once(fresh, images)
    assert [response.status_code for response in responses] == statuses
    good = [response.json() for response in responses if response.status_code == 200]
    assert len(good) == len(own_images)
    for answer, (item_id, image) in zip(good, own_images.items(), strict=True):
        assert item_id in {result["id"] for result in answer["results"]}
        assert numbers(answer) == numbers(fresh.answer(image, limit=5))
