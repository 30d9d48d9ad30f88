"""The API as it is published: reviewed like code, and true.

After a change of the API that is wanted, write the snapshot anew and read its difference::

    VOUCH_WRITE_OPENAPI=1 .venv/bin/pytest tests/service/test_openapi.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from end_to_end.keys import KeysFile
from end_to_end.questions import assess, picture, search, truncated
from starlette.testclient import TestClient

StartClient = Callable[..., TestClient]

SNAPSHOT = Path(__file__).with_name("openapi.json")
WRITE = "VOUCH_WRITE_OPENAPI" in os.environ

PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_it_is_the_reviewed_one(document: dict[str, Any]) -> None:
    del document["info"]["version"]  # changes with every release, and nothing with it
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if WRITE:
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert json.loads(SNAPSHOT.read_text(encoding="utf-8")) == document


def test_every_operation_has_a_name_a_summary_and_a_description(document: dict[str, Any]) -> None:
    found = [operation for *_, operation in operations(document)]
    names = [operation["operationId"] for operation in found]
    assert len(names) == len(set(names)) == 13
    assert all(operation["summary"] and operation["description"] for operation in found)


@pytest.mark.parametrize("operation", ["search", "assess"])
def test_an_upload_is_typed_for_generators_old_and_new(
    document: dict[str, Any], operation: str
) -> None:
    """OpenAPI 3.0 says `format`, 3.1 `contentMediaType`; each generator knows one of them."""
    body = document["components"]["schemas"][f"Body_{operation}"]
    image = body["properties"]["image"]
    assert image["type"] == "string"
    assert image["format"] == "binary"
    assert image["contentMediaType"] == "application/octet-stream"
    assert body["required"] == ["image"]


def test_every_error_is_a_problem_document_and_nothing_else(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for status, response in operation["responses"].items():
            if not status.startswith("2"):
                assert response["content"] == PROBLEM, (method, path, status)
                assert response["description"], (method, path, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred | {"Body_search", "Body_assess"} == set(schemas)


REFUSALS = {"401", "403", "429"}
"""What any route answers that needs a key."""

Ask = Callable[[TestClient], httpx2.Response]

# For each operation, a request that is answered, and one for each error that it documents.
REQUESTS: dict[tuple[str, str], Ask] = {
    ("list_galleries", "200"): lambda client: client.get("/v1/galleries"),
    ("get_gallery", "200"): lambda client: client.get("/v1/galleries/digits"),
    ("get_gallery", "404"): lambda client: client.get("/v1/galleries/none"),
    ("get_calibration", "200"): lambda client: client.get("/v1/galleries/digits/calibration"),
    ("get_calibration", "404"): lambda client: client.get("/v1/galleries/none/calibration"),
    ("get_operating_point", "200"): lambda client: operating_point(client, "digits", 0.1),
    ("get_operating_point", "404"): lambda client: operating_point(client, "none", 0.1),
    ("get_operating_point", "422"): lambda client: operating_point(client, "digits", -1),
    ("search", "200"): lambda client: search(client, picture("PNG")),
    ("search", "400"): lambda client: search(client, b""),
    ("search", "404"): lambda client: search(client, picture("PNG"), "none"),
    ("search", "413"): lambda client: search(client, bytes(10_000)),
    ("search", "415"): lambda client: search(client, b"text"),
    ("search", "422"): lambda client: search(client, truncated()),
    ("assess", "200"): lambda client: assess(client, picture("PNG")),
    ("assess", "400"): lambda client: assess(client, b""),
    ("assess", "404"): lambda client: assess(client, picture("PNG"), "none"),
    ("assess", "413"): lambda client: assess(client, bytes(10_000)),
    ("assess", "415"): lambda client: assess(client, b"text"),
    ("assess", "422"): lambda client: assess(client, truncated()),
    ("give_feedback", "200"): lambda client: feedback(client, "digits"),
    ("give_feedback", "404"): lambda client: feedback(client, "none"),
    ("give_feedback", "409"): lambda client: feedback(client, "digits"),
    ("give_feedback", "422"): lambda client: feedback(client, "digits", correct="perhaps"),
    ("get_item", "200"): lambda client: client.get(f"/v1/galleries/digits/items/{an_item(client)}"),
    ("get_item", "404"): lambda client: client.get("/v1/galleries/digits/items/none"),
    ("get_thumbnail", "200"): lambda client: client.get(
        f"/v1/galleries/digits/items/{an_item(client)}/thumbnail"
    ),
    ("get_thumbnail", "404"): lambda client: client.get(
        "/v1/galleries/digits/items/none/thumbnail"
    ),
    ("get_sample", "200"): lambda client: client.get("/v1/galleries/digits/samples/1"),
    ("get_sample", "404"): lambda client: client.get("/v1/galleries/digits/samples/none"),
    ("livez", "200"): lambda client: client.get("/livez"),
    ("readyz", "200"): lambda client: client.get("/readyz"),
    ("metrics", "200"): lambda client: client.get("/metrics"),
}


def feedback(client: TestClient, gallery: str, **said: Any) -> httpx2.Response:
    """Confirm the first result of a query; or whatever else is said."""
    answer = search(client, picture("PNG", 8, 8)).json()
    first = {"query_id": answer["query"]["id"], "item_id": answer["results"][0]["id"]}
    return client.post(f"/v1/galleries/{gallery}/feedback", json={**first, "correct": True, **said})


def operating_point(client: TestClient, gallery: str, max_error: float) -> httpx2.Response:
    path = f"/v1/galleries/{gallery}/calibration/operating-points"
    return client.get(path, params={"max_error": max_error})


def an_item(client: TestClient) -> str:
    item_id: str = search(client, picture("PNG", 8, 8)).json()["results"][0]["id"]
    return item_id


def test_what_is_documented_is_what_is_tried(document: dict[str, Any]) -> None:
    documented = {
        (operation["operationId"], status)
        for *_, operation in operations(document)
        for status in operation["responses"]
        if status != "default"
    }
    refusals = {(name, status) for name, status in documented if status in REFUSALS}
    assert documented - refusals == set(REQUESTS)
    open_to_all = {"livez", "readyz"}
    for status in ("401", "429"):
        named = {name for name, refusal in refusals if refusal == status}
        assert named == {name for name, _ in REQUESTS} - open_to_all
    assert {name for name, refusal in refusals if refusal == "403"} == {"give_feedback"}


@pytest.mark.parametrize(("operation_id", "status"), REQUESTS)
def test_each_documented_answer_is_given(
    start: StartClient, operation_id: str, status: str, tmp_path: Path
) -> None:
    kept = {} if status == "409" else {"feedback": tmp_path / "feedback.sqlite3"}
    client = start(max_image_bytes=9_000, **kept)
    response = REQUESTS[operation_id, status](client)
    assert str(response.status_code) == status
    [answer] = [
        operation["responses"][status]
        for *_, operation in operations(client.get("/openapi.json").json())
        if operation["operationId"] == operation_id
    ]
    assert response.headers["content-type"].split(";")[0] in answer["content"]


@pytest.mark.parametrize("status", sorted(REFUSALS))
def test_each_documented_refusal_is_given(
    start: StartClient, keys_file: KeysFile, status: str
) -> None:
    client = start(keys=keys_file.path)
    if status == "429":
        client.headers["X-API-Key"] = keys_file.make("admin", rate_limit="1/day")
        client.get("/v1/galleries")  # the one that is allowed
    elif status == "403":
        client.headers["X-API-Key"] = keys_file.make("read")
    asked = 0
    for path, method, operation in operations(client.get("/openapi.json").json()):
        if status in operation["responses"]:
            response = client.request(method, path.format(gallery="digits", item_id=1, sample_id=1))
            assert str(response.status_code) == status, (method, path)
            assert response.headers["content-type"] in operation["responses"][status]["content"]
            asked += 1
    assert asked


@pytest.mark.parametrize(
    ("settings", "optional"),
    [
        ({}, {"read", "write"}),
        ({"keys": True}, set()),
        ({"keys": True, "anonymous": True}, {"read", "write"}),
    ],
)
def test_it_says_which_scope_is_needed_and_whether_a_key_is(
    start: StartClient, keys_file: KeysFile, settings: dict[str, Any], optional: set[str]
) -> None:
    keys_file.make("read")
    given = {**settings, "keys": keys_file.path} if "keys" in settings else settings
    document = start(**given).get("/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert (schemes["bearer"]["type"], schemes["bearer"]["scheme"]) == ("http", "bearer")
    assert {"type": "apiKey", "in": "header", "name": "X-API-Key"}.items() <= (
        schemes["api_key"].items()
    )
    for _, _, operation in operations(document):
        name = operation["operationId"]
        if name in {"livez", "readyz"}:
            assert "security" not in operation
            continue
        scope = "write" if name == "give_feedback" else "read"
        without = [{}] if scope in optional else []
        assert operation["security"] == [{"bearer": [scope]}, {"api_key": [scope]}, *without]
