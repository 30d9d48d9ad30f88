"""Filters and diverse lists through the doors of the service."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.gallery import parse_filter
from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.messages import message
from service import schemas
from service.client.mcp_tools import search_in_words
from service.http.cursors import MAX_LENGTH
from tests.end_to_end.questions import search, search_batch, search_json, search_raw

Search = Callable[..., httpx2.Response]
StartClient = Callable[..., TestClient]

WHERE = {"label": {"in": ["1", "7"]}, "id": {"gt": "0"}}
SIMILAR = "/v1/galleries/digits/items/{}/similar"


def labels(answer: dict[str, Any]) -> list[str]:
    return [result["label"] for result in answer["results"]]


def ordinary(bundle: Bundle) -> list[bytes]:
    """Images of labels that the gallery holds."""
    samples = [sample for sample in bundle.manifest.samples if sample.belongs]
    return [(bundle.directory / sample.file).read_bytes() for sample in samples]


def ids(answer: dict[str, Any]) -> list[str]:
    return [result["id"] for result in answer["results"]]


@pytest.mark.parametrize("door", [search, search_raw, search_json])
def test_every_door_takes_a_filter(
    client: TestClient, bundle: Bundle, digit: bytes, door: Search
) -> None:
    answer = door(client, digit, limit=7, filter=json.dumps(WHERE)).json()
    found = bundle.retriever.search(digit, 7, where=parse_filter(WHERE))
    assert ids(answer) == [match.id for match in found.matches]
    assert set(labels(answer)) <= {"1", "7"}
    assert len(answer["results"]) == 7


def test_a_filter_may_be_an_object_of_the_json(client: TestClient, digit: bytes) -> None:
    as_text = search_json(client, digit, filter=json.dumps(WHERE)).json()
    as_object = search_json(client, digit, filter=WHERE).json()
    assert as_object["results"] == as_text["results"]


def test_a_batch_is_filtered_whole(client: TestClient, digit: bytes, stranger: bytes) -> None:
    answer = search_batch(client, [digit, stranger], filter='{"label": "1"}').json()
    for item in answer["items"]:
        assert set(labels(item["answer"])) == {"1"}


def test_what_is_similar_is_filtered(client: TestClient, bundle: Bundle) -> None:
    gallery = bundle.retriever.gallery
    item = gallery.items(np.array([5]))[0]
    where = {"label": item.label}
    answer = client.get(SIMILAR.format(item.id), params={"filter": json.dumps(where), "limit": 9})
    found = bundle.retriever.similar(item.id, 9, parse_filter(where))
    assert ids(answer.json()) == [match.id for match in found.matches]
    assert item.id not in ids(answer.json())


def test_an_answer_explains_how_its_items_were_found(
    client: TestClient, bundle: Bundle, digit: bytes
) -> None:
    item = bundle.retriever.gallery.items(np.array([5]))[0]
    where = {"label": {"in": ["1", "7"]}, "shelf": {"exists": False}}
    found = bundle.retriever.search(digit, 3, where=parse_filter(where)).explain
    assert found is not None
    share = np.mean(bundle.retriever.gallery.matching(parse_filter(where)).mask())
    assert found.estimated_share == pytest.approx(share, abs=0.06)
    asked = {"limit": "3", "filter": json.dumps(where)}
    for answer in (
        search(client, digit, **asked).json(),
        client.get(SIMILAR.format(item.id), params=asked).json(),
    ):
        assert answer["explain"] == {
            "plan": "exact",
            "estimated_share": found.estimated_share,
            "indexes": {"label": "bundle", "shelf": "memory"},
        }
    assert search(client, digit, limit=3).json()["explain"] is None


def probabilities(answer: dict[str, Any]) -> dict[str, float]:
    """Match probability of each item."""
    return {result["id"]: result["match_probability"] for result in answer["results"]}


def by_label(answer: dict[str, Any]) -> dict[str, float]:
    """Match probability of each label."""
    return {result["label"]: result["match_probability"] for result in answer["results"]}


def test_a_filter_that_everything_passes_changes_no_number(
    client: TestClient, digit: bytes
) -> None:
    whole = search(client, digit).json()
    answer = search(client, digit, filter='{"label": {"exists": true}}').json()
    for name in ("results", "verdict", "reason", "no_match_probability", "absent", "query"):
        assert answer[name] == whole[name], name


def test_under_a_filter_items_keep_their_probabilities(client: TestClient, bundle: Bundle) -> None:
    for image in ordinary(bundle):
        whole = probabilities(search(client, image, limit=100).json())
        answer = search(client, image, limit=100, filter=json.dumps(WHERE)).json()
        shared = whole.keys() & probabilities(answer).keys()
        assert all(probabilities(answer)[one] == whole[one] for one in shared)
        assert set(labels(answer)) == {"1", "7"}
        passing = sum(by_label(answer).values())
        assert answer["no_match_probability"] == pytest.approx(1 - passing)


def test_a_match_outside_the_filter_is_no_match_in_it(client: TestClient, digit: bytes) -> None:
    whole = search(client, digit, limit=1).json()
    [first] = whole["results"]
    assert first["match_probability"] > 0.5
    other = json.dumps({"label": {"ne": first["label"]}})
    answer = search(client, digit, filter=other).json()
    assert answer["verdict"] == "no_match"
    assert answer["no_match_probability"] >= first["match_probability"]
    assert first["label"] not in labels(answer)


def test_a_filter_that_is_known_to_hold_the_match_conditions_on_it(
    client: TestClient, digit: bytes
) -> None:
    [first] = search(client, digit, limit=1).json()["results"]
    other = json.dumps({"label": {"ne": first["label"]}})
    grouped: dict[str, Any] = {"filter": other, "group_by": "label", "limit": 100}
    shown = search(client, digit, **grouped).json()
    known = search(client, digit, filter_means="known", **grouped).json()
    assert ids(known) == ids(shown)
    left = 1 - first["match_probability"]
    for name, probability in by_label(shown).items():
        assert by_label(known)[name] == pytest.approx(probability / left)
    assert 1 - sum(by_label(known).values()) == pytest.approx(known["no_match_probability"])
    assert known["no_match_probability"] < shown["no_match_probability"]
    assert search(client, digit, filter_means="perhaps", **grouped).status_code == 422


def test_no_coverage_is_promised_of_a_part_of_the_gallery(client: TestClient, digit: bytes) -> None:
    chosen = search(client, digit, filter=json.dumps(WHERE)).json()["result_set"]
    assert (chosen["promised"], chosen["promised_for"]) == (False, [])
    assert chosen["reason"] == message("coverage_not_under_filter")
    assert {item["label"] for item in chosen["items"]} <= {"1", "7"}


def test_an_alien_query_is_one_under_any_filter(client: TestClient, stranger: bytes) -> None:
    answer = search(client, stranger, filter='{"label": "1"}').json()
    assert answer["verdict"] == "out_of_distribution"
    assert answer["result_set"]["promised"] is False


def test_without_a_calibration_there_is_no_reason_to_give(
    start: StartClient, bare_bundle: Bundle, digit: bytes
) -> None:
    answer = search(start(bare_bundle), digit, filter='{"label": "1"}').json()
    assert (answer["verdict"], answer["reason"]) == ("not_calibrated", None)
    assert answer["no_match_probability"] is answer["absent"] is None


def test_a_filter_that_nothing_passes_finds_nothing(client: TestClient, digit: bytes) -> None:
    answer = search(client, digit, filter='{"colour": "red"}').json()
    assert (answer["results"], answer["next_cursor"]) == ([], None)
    assert (answer["verdict"], answer["no_match_probability"]) == ("no_match", 1)
    assert answer["result_set"]["items"] == []
    assert search(client, digit, filter='{"colour": "red"}', group_by="label").status_code == 200


@pytest.mark.parametrize("text", ['{"colour": "red"}', '{"label": 3}'])
def test_a_filter_that_nothing_passes_is_the_reason_of_the_answer(
    client: TestClient,
    start: StartClient,
    bare_bundle: Bundle,
    digit: bytes,
    stranger: bytes,
    text: str,
) -> None:
    uncalibrated = start(bare_bundle)
    for asked, image, verdict in (
        (client, digit, "no_match"),
        (client, stranger, "out_of_distribution"),
        (uncalibrated, digit, "not_calibrated"),
    ):
        answer = search(asked, image, filter=text).json()
        assert (answer["verdict"], answer["results"]) == (verdict, [])
        assert answer["reason"] == message("no_item_passes_filter")
        assert answer["reason_code"]["code"] == "no_item_passes_filter"
    told = search_in_words(
        schemas.SearchAnswer.model_validate(search(client, digit, filter=text).json())
    )
    assert message("no_item_passes_filter") in told
    assert "Probability that no item that passes the filter is a match: 100.0 %." in told
    assert "The nearest items" not in told


def test_pages_under_a_filter_are_one_list_and_end_with_it(
    client: TestClient, bundle: Bundle, digit: bytes
) -> None:
    some = [item.id for item in bundle.retriever.gallery.items(np.arange(0, 60, 4))]
    answer = search(client, digit, limit=4, filter=json.dumps({"id": {"in": some}})).json()
    found = ids(answer)
    while answer["next_cursor"] is not None:
        answer = client.get(
            "/v1/galleries/digits/search/next", params={"cursor": answer["next_cursor"]}
        ).json()
        found += ids(answer)
    assert len(found) == len(some)
    assert set(found) == set(some)


def test_a_cursor_carries_the_longest_filter(client: TestClient, digit: bytes) -> None:
    text = json.dumps({"label": {"ne": '"' * (MAX_BYTES // 2 - 15)}})
    assert MAX_BYTES - 10 < len(text) <= MAX_BYTES
    cursor = search(client, digit, limit=1, filter=text).json()["next_cursor"]
    assert len(cursor) <= MAX_LENGTH
    page = client.get("/v1/galleries/digits/search/next", params={"cursor": cursor})
    assert (page.status_code, page.json()["results"][0]["rank"]) == (200, 2)


@pytest.mark.parametrize("door", [search, search_raw, search_json])
@pytest.mark.parametrize("text", ["label = 3", "[]", '{"label": {"like": "3"}}', "{}"])
def test_nonsense_is_a_problem_that_says_what_was_wanted(
    client: TestClient, digit: bytes, door: Search, text: str
) -> None:
    response = door(client, digit, filter=text)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_filter")
    assert "wanted" in response.json()["detail"].lower()


def test_a_batch_with_a_bad_filter_is_refused_whole(client: TestClient, digit: bytes) -> None:
    response = search_batch(client, [digit], filter="{}")
    assert (response.status_code, response.json()["code"]) == (422, "invalid_filter")


def test_grouped_by_label_each_stands_once_as_sure_as_ever(
    client: TestClient, digit: bytes
) -> None:
    everything = search(client, digit, limit=100).json()
    answer = search(client, digit, limit=100, group_by="label").json()
    nearest: dict[str, dict[str, Any]] = {}
    for result in everything["results"]:
        nearest.setdefault(result["label"], result)
    assert len(answer["results"]) >= len(nearest) > 1
    for result, expected in zip(answer["results"], nearest.values(), strict=False):
        for name in ("id", "match_probability", "similarity"):
            assert result[name] == expected[name]
    assert [result["rank"] for result in answer["results"]] == [
        *range(1, len(answer["results"]) + 1)
    ]
    assert (answer["verdict"], answer["result_set"]) == (
        everything["verdict"],
        everything["result_set"],
    )


def test_near_duplicates_are_left_out(client: TestClient, bundle: Bundle, digit: bytes) -> None:
    gallery = bundle.retriever.gallery
    answer = search(client, digit, limit=30, duplicate_similarity=0.9).json()
    rows = np.array([gallery.row(item_id) for item_id in ids(answer)])
    directions = gallery.directions(rows)
    similarities = directions @ directions.T - 2 * np.eye(len(rows))
    assert similarities.max() < 0.9
    assert len(rows) < 30 or ids(answer) != ids(search(client, digit, limit=30).json())


def test_a_diverse_list_goes_on_page_by_page(client: TestClient, digit: bytes) -> None:
    whole = search(client, digit, limit=100, group_by="label").json()
    page = search(client, digit, limit=2, group_by="label").json()
    found = ids(page)
    while page["next_cursor"] is not None:
        page = client.get(
            "/v1/galleries/digits/search/next", params={"cursor": page["next_cursor"]}
        ).json()
        found += ids(page)
    assert found == ids(whole)
