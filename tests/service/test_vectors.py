"""Search with a vector, and decisions on neighbours of another store, over HTTP."""

from __future__ import annotations

import base64
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from service.http.limits import MAX_LARGE_JSON_PARTS
from tests.end_to_end.questions import embed, search

VECTOR = "/v1/galleries/digits/search/vector"
DECIDE = "/v1/galleries/digits/decide"


def assert_problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["code"]) == (status, code), problem
    return problem


@pytest.fixture
def embedded(client: TestClient, digit: bytes) -> dict[str, Any]:
    """What `embed` answers, as the fields of a query."""
    answer = embed(client, digit).json()
    return {
        "mean": answer["direction"],
        "variance": answer["variance"],
        "outlier_score": answer["outlier_score"],
        "encoder_fingerprint": answer["encoder"]["fingerprint"],
    }


@pytest.fixture
def listed(client: TestClient, digit: bytes) -> list[dict[str, Any]]:
    """The two hundred nearest items as another store would send them."""
    answer = search(client, digit, limit=100).json()
    results = answer["results"]
    while answer["next_cursor"]:
        answer = client.get(
            "/v1/galleries/digits/search/next", params={"cursor": answer["next_cursor"]}
        ).json()
        results += answer["results"]
    return [{name: one[name] for name in ("id", "label", "similarity")} for one in results]


class TestSearch:
    def test_a_vector_finds_what_its_image_finds(
        self, client: TestClient, digit: bytes, embedded: dict[str, Any]
    ) -> None:
        by_image = search(client, digit, limit=7).json()
        by_vector = client.post(VECTOR, json={**embedded, "limit": 7}).json()
        assert by_vector["query"]["image"] is None
        assert by_vector["verdict"] == by_image["verdict"]
        assert [one["id"] for one in by_vector["results"]] == [
            one["id"] for one in by_image["results"]
        ]
        for one, other in zip(by_vector["results"], by_image["results"], strict=True):
            assert one["match_probability"] == pytest.approx(other["match_probability"], abs=1e-6)
        assert by_vector["query"]["ood"] == by_image["query"]["ood"]

    def test_it_is_remembered_for_the_next_page_and_for_feedback(
        self, client: TestClient, embedded: dict[str, Any]
    ) -> None:
        first = client.post(VECTOR, json={**embedded, "limit": 2}).json()
        again = client.post(VECTOR, json={**embedded, "limit": 2}).json()
        assert again["query"]["id"] == first["query"]["id"]
        page = client.get(
            "/v1/galleries/digits/search/next", params={"cursor": first["next_cursor"]}
        ).json()
        assert [one["rank"] for one in page["results"]] == [3, 4]
        assert page["query"]["image"] is None

    def test_base64_of_float32_is_the_same(
        self, client: TestClient, embedded: dict[str, Any]
    ) -> None:
        packed = {
            name: base64.b64encode(np.array(embedded[name], "<f4").tobytes()).decode()
            for name in ("mean", "variance")
        }
        plain = client.post(VECTOR, json=embedded).json()
        dense = client.post(VECTOR, json={**embedded, **packed}).json()
        assert dense["query"]["id"] == plain["query"]["id"]
        assert dense["results"] == plain["results"]

    def test_filters_and_options_are_heeded(
        self, client: TestClient, embedded: dict[str, Any]
    ) -> None:
        asked = {**embedded, "filter": {"label": {"in": ["1", "7"]}}, "alpha": 0.5}
        answer = client.post(VECTOR, json=asked).json()
        assert {one["label"] for one in answer["results"]} <= {"1", "7"}
        assert answer["query"]["ood"]["alpha"] == 0.5


class TestDecide:
    def test_the_decision_is_that_of_the_search(
        self,
        client: TestClient,
        digit: bytes,
        embedded: dict[str, Any],
        listed: list[dict[str, Any]],
    ) -> None:
        by_image = search(client, digit, limit=100).json()
        answer = client.post(DECIDE, json={**embedded, "neighbours": listed}).json()
        for name in ("verdict", "reason", "absent"):
            assert answer[name] == by_image[name]
        nothing = answer["no_match_probability"]
        assert nothing == pytest.approx(by_image["no_match_probability"], abs=1e-6)
        assert [one["id"] for one in answer["neighbours"]] == [one["id"] for one in listed]
        for one, other in zip(answer["neighbours"], by_image["results"], strict=False):
            assert one["match_probability"] == pytest.approx(other["match_probability"], abs=1e-6)
        assert answer["result_set"] == by_image["result_set"]

    def test_its_options_are_heeded(
        self, client: TestClient, embedded: dict[str, Any], listed: list[dict[str, Any]]
    ) -> None:
        options = {"alpha": 0.3, "coverage": 0.5, "expected_absent": 0.4}
        answer = client.post(DECIDE, json={**embedded, "neighbours": listed, **options}).json()
        assert answer["query"]["ood"]["alpha"] == 0.3
        assert answer["result_set"]["coverage"] == 0.5
        assert answer["absent"] == {**answer["absent"], "share": 0.4, "origin": "request"}

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda asked: asked["neighbours"].reverse(), "nearest neighbour first"),
            (lambda asked: asked.update(neighbours=asked["neighbours"][:20]), "has 20 neighbours"),
            (lambda asked: asked.update(mean=asked["mean"][:-1]), "`mean` has the shape"),
            (lambda asked: asked.update(mean=[0.0] * len(asked["mean"])), "no direction"),
            (lambda asked: asked.update(encoder_fingerprint="0" * 64), "cannot be compared"),
            (lambda asked: asked.update(outlier_score=None), "Send `features`"),
            (lambda asked: asked["neighbours"][3].pop("similarity"), "199 have a similarity and 0"),
            (
                lambda asked: asked["neighbours"][3].update(vector=[1.0]),
                "200 have a similarity and 1",
            ),
            (
                lambda asked: asked.update(
                    neighbours=[{"id": str(n), "vector": [1.0] * (1 + n % 2)} for n in range(200)]
                ),
                "different lengths",
            ),
            (lambda asked: asked["neighbours"][1].update(id=asked["neighbours"][0]["id"]), "twice"),
        ],
    )
    def test_what_cannot_be_decided_is_said(
        self,
        client: TestClient,
        embedded: dict[str, Any],
        listed: list[dict[str, Any]],
        change: Any,
        reason: str,
    ) -> None:
        asked = {**embedded, "neighbours": listed}
        change(asked)
        problem = assert_problem(client.post(DECIDE, json=asked), 422, "invalid_vector")
        assert reason in problem["detail"]

    @pytest.mark.parametrize(
        "fields",
        [
            {"mean": "no base64!"},
            {"mean": base64.b64encode(b"abc").decode()},
            {"mean": []},
            {"mean": ["one"]},
            {"mean": [True, False]},
            {"neighbours": [{"id": "a", "vector": [True]}]},
            {"neighbours": []},
            {"neighbours": [{"label": "1"}]},
            {"alpha": 2},
        ],
    )
    def test_a_field_that_is_none_is_named(
        self,
        client: TestClient,
        embedded: dict[str, Any],
        listed: list[dict[str, Any]],
        fields: dict[str, Any],
    ) -> None:
        response = client.post(DECIDE, json={**embedded, "neighbours": listed, **fields})
        problem = assert_problem(response, 422, "invalid_request")
        assert next(iter(fields)) in problem["errors"][0]["pointer"]

    def test_documents_of_many_parts(self, client: TestClient, embedded: dict[str, Any]) -> None:
        json = {"Content-Type": "application/json"}
        for body in (b"[" * (MAX_LARGE_JSON_PARTS + 1), b"[" + b"0," * MAX_LARGE_JSON_PARTS):
            assert_problem(client.post(DECIDE, content=body, headers=json), 422, "invalid_request")
        vectors = [{"id": str(n), "vector": embedded["mean"]} for n in range(200)]
        answer = client.post(DECIDE, json={**embedded, "neighbours": vectors})
        assert answer.status_code == 200, answer.text  # 25,600 numbers
        urls = [
            {"id": f"https://a.example/{n:05}" + "x" * 1_000, "label": "1", "similarity": 0.5}
            for n in range(1_000)
        ]
        answer = client.post(DECIDE, json={**embedded, "neighbours": urls})
        assert answer.status_code == 200, answer.text  # ids as long as a gallery's may be
        large = b'{"mean": "' + b"A" * (5 * 2**20) + b'"}'
        assert_problem(client.post(DECIDE, content=large, headers=json), 413, "image_too_large")
