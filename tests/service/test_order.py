"""`order` through HTTP: every door, every page, the gallery's own, and where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.retriever import Retriever
from tests.end_to_end.questions import search, search_batch, search_json, search_raw

StartClient = Callable[..., TestClient]
Search = Callable[..., httpx2.Response]

PATH = "/v1/galleries/digits"


def by_probability(bundle: Bundle) -> Bundle:
    """The digits, whose owner lists by probability."""
    fitted = bundle.retriever.calibration
    assert fitted is not None
    own = Retriever(
        bundle.retriever.encoder, bundle.retriever.gallery, replace(fitted, order="probability")
    )
    return replace(bundle, retriever=own)


def ids(answer: dict[str, Any]) -> list[str]:
    return [result["id"] for result in answer["results"]]


@pytest.mark.parametrize("door", [search, search_raw, search_json])
def test_every_door_lists_by_probability(client: TestClient, digit: bytes, door: Search) -> None:
    nearest = door(client, digit, limit=100).json()
    likeliest = door(client, digit, limit=100, order="probability").json()
    assert (nearest["order"], likeliest["order"]) == ("similarity", "probability")
    told = [result["match_probability"] for result in likeliest["results"]]
    assert told == sorted(told, reverse=True)
    similar = [result["similarity"] for result in nearest["results"]]
    assert similar == sorted(similar, reverse=True)
    assert ids(likeliest) != ids(nearest)
    assert likeliest["result_set"] == nearest["result_set"]


def test_of_a_batch_all_are_listed_so(client: TestClient, digit: bytes, stranger: bytes) -> None:
    response = search_batch(client, [digit, stranger], limit=20, order="probability")
    items = response.json()["items"]
    for item, image in zip(items, (digit, stranger), strict=True):
        alone = search(client, image, limit=20, order="probability").json()
        assert ids(item["answer"]) == ids(alone)


def test_pages_go_on_in_the_order_of_the_first(start: StartClient, bundle: Bundle) -> None:
    """Every candidate once, whoever named the order, and whatever the gallery's own is."""
    sample = next(sample for sample in bundle.manifest.samples if sample.belongs)
    image = (bundle.directory / sample.file).read_bytes()
    for own, options in ((bundle, {"order": "probability"}), (by_probability(bundle), {})):
        client = start(own)
        whole = search(client, image, limit=100, **options).json()
        page = search(client, image, limit=7, **options).json()
        seen, told = ids(page), []
        while page["next_cursor"] is not None:
            page = client.get(f"{PATH}/search/next", params={"cursor": page["next_cursor"]}).json()
            assert page["order"] == "probability"
            seen += ids(page)
            told += [result["match_probability"] for result in page["results"]]
        assert seen[:100] == ids(whole)
        assert len(seen) == len(set(seen)) == 200
        assert told == sorted(told, reverse=True)


def test_a_request_overrules_the_gallery(
    client: TestClient, start: StartClient, bundle: Bundle, digit: bytes
) -> None:
    other = start(by_probability(bundle))
    assert search(other, digit).json()["order"] == "probability"
    asked = search(other, digit, limit=50, order="similarity").json()
    assert ids(asked) == ids(search(client, digit, limit=50).json())
    item = ids(asked)[0]
    likes = [one.get(f"{PATH}/items/{item}/similar").json() for one in (client, other)]
    assert ids(likes[0]) == ids(likes[1])


@pytest.mark.parametrize("door", [search, search_raw, search_json])
def test_without_calibration_it_says_what_to_do(
    start: StartClient, bare_bundle: Bundle, digit: bytes, door: Search
) -> None:
    client = start(bare_bundle)
    response = door(client, digit, order="probability")
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "order_unavailable")
    assert "vouch-build calibrate" in problem["detail"]
    assert search(client, digit).json()["order"] == "similarity"


def test_an_order_that_nobody_knows_is_refused(client: TestClient, digit: bytes) -> None:
    response = search(client, digit, order="price")
    assert response.status_code == 422
    assert "probability" in response.text


def test_the_calibration_speaks_of_the_first_results_of_either_order(
    client: TestClient, start: StartClient, bundle: Bundle
) -> None:
    fitted = bundle.retriever.calibration
    assert fitted is not None
    other, path = start(by_probability(bundle)), f"{PATH}/calibration"
    of_first = client.get(path).json()
    of_likeliest = client.get(path, params={"order": "probability"}).json()
    assert (of_first["order"], of_likeliest["order"]) == ("similarity", "probability")
    assert other.get(path).json() == of_likeliest
    measured = fitted.report["cross_fitted"]["orders"]
    assert of_first["top1_ece"] == measured["similarity"]["top1_ece"]
    assert of_likeliest["top1_ece"] == measured["probability"]["top1_ece"]
    promised = fitted.promises(order="probability")
    point = client.get(
        f"{path}/operating-points", params={"max_error": 0.2, "order": "probability"}
    ).json()["point"]
    expected, _ = promised.at(0.2)
    assert expected is not None
    assert point["threshold"] == expected.threshold
    assert of_likeliest["point"]["coverage"] == promised.point.coverage
