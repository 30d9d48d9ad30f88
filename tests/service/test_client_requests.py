"""What the client makes requests of: values that JSON cannot hold are named before a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from types import MappingProxyType
from typing import Any

import httpx2
import numpy as np
import pytest

from model_store.errors import InvalidRequest
from service.client import VouchClient
from service.client.contract import fields_of
from service.schemas import Neighbour, VectorFields

Ask = Callable[[VouchClient], object]

QUERY = VectorFields(mean=[1.0])


def sent_by(ask: Ask) -> httpx2.Request:
    """The request of a method, to a service that refuses it."""
    seen: list[httpx2.Request] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(400, text="refused")

    with (
        VouchClient("http://service", transport=httpx2.MockTransport(respond)) as client,
        pytest.raises(Exception, match="not_vouch"),
    ):
        ask(client)
    [request] = seen
    return request


def test_vectors_and_items_can_be_mappings() -> None:
    query: dict[str, Any] = {
        "mean": np.array([0.5, 1], np.float32),
        "outlier_score": np.float32(2),
        "x": None,
    }
    sent = sent_by(lambda client: client.search_vector("g", query, limit=3))
    wanted = {"mean": [0.5, 1.0], "outlier_score": 2.0}
    assert json.loads(sent.read()) == {**wanted, "limit": 3}
    neighbours: list[Any] = [
        {"id": "a", "vector": np.array([1, 0])},
        Neighbour(id="b", similarity=0.5),
    ]
    sent = sent_by(lambda client: client.decide("g", query, neighbours))
    rows = [{"id": "a", "vector": [1, 0]}, {"id": "b", "similarity": 0.5}]
    assert json.loads(sent.read()) == {**wanted, "neighbours": rows}
    item = MappingProxyType({"id": "i", "label": None})
    sent = sent_by(lambda client: client.decide_query("g", "q", "new", item=item))
    assert json.loads(sent.read())["item"] == {"id": "i"}


def test_numbers_of_numpy_and_mappings_are_sent_as_json() -> None:
    options: dict[str, Any] = {
        "alpha": np.float32(0.5),
        "limit": np.int64(3),
        "filter": MappingProxyType({"year": {"gte": np.int16(2000)}}),
        "source": None,
    }
    found = fields_of(**options)
    assert found == {"alpha": 0.5, "limit": 3, "filter": '{"year": {"gte": 2000}}'}
    metadata: Any = MappingProxyType(
        {"shelf": np.int64(3), "tags": ("a", np.bool_(True)), "n": None}
    )
    edited = sent_by(lambda client: client.edit_item("g", "a", metadata=metadata))
    expected = {"shelf": 3, "tags": ["a", True], "n": None}
    assert json.loads(edited.read()) == {"metadata": expected}
    put = sent_by(lambda client: client.put_item("g", "a", b"picture", metadata=metadata))
    assert json.dumps(expected).encode() in put.read()


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (
            lambda client: client.put_item("g", "a", b"", metadata={"d": date(2026, 1, 1)}),
            TypeError,
            r"metadata\.d: received date '2026-01-01', wanted text, a number, true, false, null, a",
        ),
        (
            lambda client: client.edit_item("g", "a", metadata={"tags": ["x", {"y": b"z"}]}),
            TypeError,
            r"metadata\.tags\[1\]\.y: received bytes",
        ),
        (
            lambda client: client.edit_item("g", "a", metadata={"n": np.longdouble(1)}),
            TypeError,
            r"metadata\.n: received longdouble",
        ),
        (
            lambda client: client.edit_item("g", "a", metadata={7: "x"}),
            TypeError,
            "metadata: key 7: received int, wanted text",
        ),
        *(
            (ask, InvalidRequest, r"metadata\.n: received nan, wanted a finite number")
            for ask in (
                lambda client: client.put_item("g", "a", b"", metadata={"n": float("nan")}),
                lambda client: client.edit_item("g", "a", metadata={"n": float("nan")}),
            )
        ),
        (
            lambda client: client.search("g", b"", filter={"year": {"gte": date(2026, 1, 1)}}),
            TypeError,
            r"filter\.year\.gte: received date",
        ),
        (
            lambda client: client.search_vector("g", [1.0]),
            TypeError,
            "query: received list, wanted a mapping",
        ),
        (
            lambda client: client.decide("g", QUERY, ["a"]),
            TypeError,
            r"neighbours\[0\]: received str, wanted a mapping",
        ),
        (
            lambda client: client.search_vector("g", QUERY, alpha=date(2026, 1, 1)),
            TypeError,
            "alpha: received date",
        ),
        (
            lambda client: client.decide("g", QUERY, [], source=date(2026, 1, 1)),
            TypeError,
            "source: received date",
        ),
        *(
            (ask, TypeError, "label: received int, wanted text")
            for ask in (
                lambda client: client.put_item("g", "a", b"", label=7),
                lambda client: client.put_items("g", [("a", b"")], label=7),
                lambda client: client.edit_item("g", "a", label=7),
            )
        ),
    ],
)
def test_value_that_json_cannot_hold_is_named(
    ask: Ask, error: type[Exception], message: str
) -> None:
    with (
        VouchClient("http://service", transport=httpx2.MockTransport(unreached)) as client,
        pytest.raises(error, match=message),
    ):
        ask(client)


def test_no_images_and_no_items_need_no_request() -> None:
    with VouchClient("http://service", transport=httpx2.MockTransport(unreached)) as client:
        assert client.search_batch("g", []) == []
        assert client.put_items("g", []) == []
        assert client.put_items("g", iter([])) == []


def test_items_are_taken_from_an_iterator() -> None:
    sent = sent_by(lambda client: client.put_items("g", iter([("a", b"one"), ("b", b"two")])))
    content = sent.read()
    assert b'[{"id": "a", "label": null}, {"id": "b", "label": null}]' in content
    assert b"one" in content
    assert b"two" in content


def unreached(request: httpx2.Request) -> httpx2.Response:
    raise AssertionError(f"{request} was sent")


def test_many_annotated_tasks_are_sent_in_parts() -> None:
    """The service answers the query of each again, within the deadline of one request."""
    seen: list[int] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        part = json.loads(request.read())
        seen.append(len(part))
        problems = [{"query_id": str(part[0]["id"]), "detail": "unknown"}] if part else []
        done = {"n_new": max(len(part) - 2, 0), "n_known": min(len(part), 1), "problems": problems}
        return httpx2.Response(200, json=done)

    with VouchClient("http://service", transport=httpx2.MockTransport(respond)) as client:
        done = client.review_queue("g").import_label_studio([{"id": n} for n in range(450)])
        assert seen == [200, 200, 50]
        assert (done.n_new, done.n_known) == (444, 3)
        assert [one.query_id for one in done.problems] == ["0", "200", "400"]
        assert client.review_queue("g").import_label_studio([]).n_new == 0
        assert seen[3:] == [0]
