"""The API as it is published: reviewed like code, and true.

After a change of the API that is wanted, write the snapshot anew and read its difference::

    VOUCH_WRITE_OPENAPI=1 .venv/bin/pytest tests/service/test_openapi.py
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import service
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import activate as activate_in
from model_store.errors import EncoderError
from model_store.feedback import CASE_REASONS
from service.app import create_app
from service.http import cursors
from service.http.documents import description_route
from service.http.limits import MAX_BATCH
from service.http.routes.dependencies import ServiceState
from service.schemas import SearchFields
from service.settings import Settings
from tests.end_to_end.keys import KeysFile
from tests.end_to_end.processes import TIMEOUT_S
from tests.end_to_end.questions import (
    assess,
    embed,
    picture,
    search,
    search_batch,
    search_json,
    search_raw,
    truncated,
)
from tests.support.local_client import LocalClient
from tests.support.typescript import declarations
from tests.support.untrained import as_untrained

SNAPSHOT = Path(__file__).with_name("openapi.json")
TYPES = Path(service.__file__).parent / "client" / "element" / "api.d.ts"
WRITE = "VOUCH_WRITE_OPENAPI" in os.environ

PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


@pytest.fixture(scope="module")
def written() -> list[str]:
    """The document as one service has written it, once a test has asked for it."""
    return []


@pytest.fixture
def document(client: TestClient, written: list[str]) -> dict[str, Any]:
    if not written:
        written.append(client.get("/openapi.json").text)
    document: dict[str, Any] = json.loads(written[0])
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_it_is_the_reviewed_one(document: dict[str, Any]) -> None:
    del document["info"]["version"]  # changes with every release, and nothing with it
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    types = declarations(document)
    if WRITE:
        SNAPSHOT.write_text(text, encoding="utf-8")
        TYPES.write_text(types, encoding="utf-8")
    assert json.loads(SNAPSHOT.read_text(encoding="utf-8")) == document
    assert TYPES.read_text(encoding="utf-8") == types


def test_no_text_says_that_queries_were_held_out_where_views_may_be_made_up(
    document: dict[str, Any],
) -> None:
    """Of a gallery without labels they are views; `queries` alone says which it is."""
    said = json.dumps(document).lower()
    assert "held-out quer" not in said
    assert "held out quer" not in said
    page = Path(service.__file__).parent / "http" / "page"
    for path in page.rglob("*.*"):
        if path.suffix in {".js", ".html"}:
            assert "held-out quer" not in path.read_text(encoding="utf-8").lower(), path.name


def test_every_operation_has_a_name_a_summary_and_a_description(document: dict[str, Any]) -> None:
    found = [operation for *_, operation in operations(document)]
    names = [operation["operationId"] for operation in found]
    assert len(names) == len(set(names)) == 63
    assert all(re.fullmatch("[a-z]+(_[a-z]+){0,2}", name) for name in names)
    assert all(operation["summary"] and operation["description"] for operation in found)


UPLOADS = {
    "search": {"multipart/form-data": "image"},
    "search_raw": {"image/*": None, "application/octet-stream": None},
    "search_batch": {"multipart/form-data": "images"},
    "assess": {"multipart/form-data": "image"},
    "embed": {"multipart/form-data": "image"},
    "put_item": {"multipart/form-data": "image"},
    "put_items": {"multipart/form-data": "images"},
}
JSON_BODIES = {"search_json", "search_vector", "search_text", "decide", "give_feedback"}
JSON_BODIES |= {"lease_review_cases", "import_decisions", "enrol_unknown"}
JSON_BODIES |= {"create_gallery", "describe_gallery", "rename_gallery", "start_shadow"}
JSON_BODIES |= {"adopt_absent_share", "edit_item", "calibrate_gallery"}


def test_an_upload_is_typed_for_generators_old_and_new(document: dict[str, Any]) -> None:
    """OpenAPI 3.0 says `format`, 3.1 `contentMediaType`; each generator knows one of them."""
    found: dict[str, dict[str, str | None]] = {}
    for *_, operation in operations(document):
        body = operation.get("requestBody")
        if body is None or operation["operationId"] in JSON_BODIES:
            continue
        assert body["required"] is True
        for media_type, content in body["content"].items():
            schema, field = content["schema"], None
            if "$ref" in schema:
                schema = document["components"]["schemas"][schema["$ref"].split("/")[-1]]
                (field,) = set(schema["required"]) - {"items"}
                schema = schema["properties"][field]
            if schema["type"] == "array":
                assert (schema["minItems"], schema["maxItems"]) == (1, MAX_BATCH)
                schema = schema["items"]
            assert schema["type"] == "string"
            assert schema["format"] == "binary"
            assert schema["contentMediaType"] == "application/octet-stream"
            found.setdefault(operation["operationId"], {})[media_type] = field
    assert found == UPLOADS


def test_no_option_of_a_form_or_an_address_may_be_null(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    forms = {
        content["schema"]["$ref"].split("/")[-1]
        for *_, operation in operations(document)
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
        if kind == "multipart/form-data"
    }
    assert len(forms) == 5
    options = [
        one for *_, operation in operations(document) for one in operation.get("parameters", ())
    ]
    assert '"null"' not in json.dumps([*(schemas[name] for name in forms), *options])
    assert schemas["SearchForm"]["properties"]["alpha"]["exclusiveMaximum"] == 1


def test_every_object_says_which_names_it_takes(document: dict[str, Any]) -> None:
    """Generators make a type without any field of an object that does not."""

    def check(node: object) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object":
                assert {"properties", "additionalProperties"} & set(node), node
            for child in node.values():
                check(child)
        elif isinstance(node, list):
            for child in node:
                check(child)

    check(document)


def test_every_error_is_a_problem_document_and_nothing_else(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert response["content"] == PROBLEM, (method, path, status)
                assert response["description"], (method, path, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred == set(schemas)


REFUSALS = {"401", "403", "429"}
"""What any route answers that needs a key."""

Ask = Callable[[TestClient], httpx2.Response]
StartClient = Callable[..., TestClient]


def ask(way: Callable[..., httpx2.Response], *args: Any) -> Ask:
    return lambda client: way(client, *args)


def put_item(client: TestClient, image: bytes, gallery: str = "digits") -> httpx2.Response:
    return client.put(f"/v1/galleries/{gallery}/items/new", files={"image": ("i", image)})


def edit_item(
    client: TestClient, change: dict[str, Any], gallery: str = "digits", item_id: str = ""
) -> httpx2.Response:
    item_id = item_id or an_item(client)
    return client.patch(f"/v1/galleries/{gallery}/items/{item_id}", json=change)


def client_get(client: TestClient, path: str) -> httpx2.Response:
    return client.get(f"/v1/galleries/{path}")


def ask_with_vector(
    path: str, gallery: str, fields: dict[str, Any] | None, client: TestClient
) -> httpx2.Response:
    """Send an embedding of the gallery's own, with changed fields; None for no JSON at all."""
    place = f"/v1/galleries/{gallery}/{path}"
    if fields is None:
        return client.post(place, content=b"x", headers={"Content-Type": "text/plain"})
    embedded = embed(client, picture("PNG")).json()
    query = {
        "mean": embedded["direction"],
        "variance": embedded["variance"],
        "outlier_score": embedded["outlier_score"],
    }
    if path == "decide":
        query["neighbours"] = [
            {"id": str(n), "label": str(n % 10), "similarity": 0.9 - n / 1000} for n in range(200)
        ]
    return client.post(place, json={**query, **fields})


def map_items(client: TestClient, gallery: str = "digits", **sent: Any) -> httpx2.Response:
    bundle_id = client.get("/v1/galleries/digits/map").json()["bundle_id"]
    return client.get(f"/v1/galleries/{gallery}/map/items", params={"bundle_id": bundle_id, **sent})


def create(client: TestClient, **said: str) -> httpx2.Response:
    return client.post("/v1/galleries", json={"name": uuid.uuid4().hex, **said})


def ask_with_text(gallery: str, text: str, client: TestClient) -> httpx2.Response:
    """Search in words, which this gallery has no text tower for."""
    return client.post(f"/v1/galleries/{gallery}/search/text", json={"text": text})


def shadow(client: TestClient, gallery: str, bundle_id: object) -> httpx2.Response:
    return client.put(f"/v1/galleries/{gallery}/shadow", json={"bundle_id": bundle_id})


def calibrated(method: str, rest: str, gallery: str = "digits", **sent: Any) -> Ask:
    """Decide on a gallery's calibration as its operator."""
    path = f"/v1/galleries/{gallery}/calibration/{rest}"
    return lambda client: client.request(method, path, **sent)


def calibrate(gallery: str, **sent: Any) -> Ask:
    """Start a calibration."""
    return lambda client: client.post(f"/v1/galleries/{gallery}/calibration", **sent)


def review(method: str, rest: str = "", gallery: str = "digits", **sent: Any) -> Ask:
    """Ask about the review queue."""
    path = f"/v1/galleries/{gallery}/review{rest}"
    return lambda client: client.request(method, path, **sent)


def unknown(rest: str = "", gallery: str = "digits", **sent: Any) -> Ask:
    """List the groups of queries that matched nothing; or enrol one."""
    path = f"/v1/galleries/{gallery}/unknown{rest}"
    return lambda client: client.request("POST" if sent else "GET", path, **sent)


NAMED: dict[str, Any] = {"label": "new"}
GROUP = f"/{'0' * 16}/enrol"

TEXT = {"Content-Type": "text/plain"}

SECRET = b"that these services sign with"
FOREIGN_ITEMS = cursors.write(cursors.ItemsCursor(bundle="another", after=1), SECRET)
FOREIGN_SEARCH = cursors.write(
    cursors.SearchCursor(bundle="another", query_id="0" * 64, start=1, options=SearchFields()),
    SECRET,
)

# For each operation, a request that is answered, and one for each error that it documents.
REVIEWS = {
    "give_feedback",
    "list_feedback",
    "undo_feedback",
    "list_review_cases",
    "get_review_summary",
    "lease_review_cases",
    "export_review_cases",
    "import_decisions",
    "get_review_case",
    "get_review_image",
    "end_review_lease",
    "list_unknown",
}
"""What reviewers may do, and readers may not."""

REQUESTS: dict[tuple[str, str], Ask] = {
    ("list_galleries", "200"): lambda client: client.get("/v1/galleries"),
    ("get_gallery", "200"): lambda client: client.get("/v1/galleries/digits"),
    ("get_gallery", "404"): lambda client: client.get("/v1/galleries/none"),
    ("get_calibration", "200"): lambda client: client.get("/v1/galleries/digits/calibration"),
    ("get_calibration", "404"): lambda client: client.get("/v1/galleries/none/calibration"),
    ("get_operating_point", "200"): lambda client: operating_point(client, "digits", 0.1),
    ("get_operating_point", "404"): lambda client: operating_point(client, "none", 0.1),
    ("get_calibration", "422"): lambda client: client.get(
        "/v1/galleries/digits/calibration?order=size"
    ),
    ("list_labels", "422"): lambda client: client.get("/v1/galleries/digits/labels?limit=0"),
    ("get_operating_point", "422"): lambda client: operating_point(client, "digits", -1),
    **{
        (way.__name__, status): ask(way, *args)
        for way in (search, search_raw, search_json, assess, embed)
        for status, args in {
            "200": (picture("PNG"),),
            "400": (b"",),
            "404": (picture("PNG"), "none"),
            "413": (bytes(10_000),),
            "415": (b"text",),
            "422": (truncated(),),
            "503": (picture("PNG", seed=503),),
        }.items()
    },
    **{
        (operation, status): partial(ask_with_vector, path, gallery, body)
        for operation, path in (("search_vector", "search/vector"), ("decide", "decide"))
        for status, gallery, body in (
            ("200", "digits", {}),
            ("404", "none", {}),
            ("413", "digits", {"mean": "A" * 5 * 2**20}),
            ("415", "digits", None),
            ("422", "digits", {"mean": [1.0]}),
        )
    },
    ("search_text", "404"): partial(ask_with_text, "none", "a seven"),
    ("search_text", "413"): partial(ask_with_text, "digits", "x" * 200_000),
    ("search_text", "415"): lambda client: client.post(
        "/v1/galleries/digits/search/text", content=b"seven", headers={"Content-Type": "text/plain"}
    ),
    ("search_text", "422"): partial(ask_with_text, "digits", "a seven"),
    ("search_batch", "200"): lambda client: search_batch(client, [picture("PNG"), b""]),
    ("search_batch", "404"): lambda client: search_batch(client, [picture("PNG")], "none"),
    ("search_batch", "413"): lambda client: search_batch(client, [bytes(90_000)]),
    ("search_batch", "415"): lambda client: client.post(
        "/v1/galleries/digits/search/batch", json={"images": []}
    ),
    ("search_batch", "422"): lambda client: search_batch(client, [b""] * (MAX_BATCH + 1)),
    ("search_next", "200"): lambda client: client.get(
        "/v1/galleries/digits/search/next", params={"cursor": next_cursor(client)}
    ),
    ("search_next", "404"): lambda client: client.get(
        "/v1/galleries/none/search/next", params={"cursor": next_cursor(client)}
    ),
    ("search_next", "409"): lambda client: client.get(
        "/v1/galleries/digits/search/next", params={"cursor": FOREIGN_SEARCH}
    ),
    ("search_next", "422"): lambda client: client.get(
        "/v1/galleries/digits/search/next", params={"cursor": "x"}
    ),
    ("list_facets", "200"): lambda client: client.get("/v1/galleries/digits/facets"),
    ("list_facets", "404"): lambda client: client.get("/v1/galleries/none/facets"),
    ("list_facets", "422"): lambda client: client.get("/v1/galleries/digits/facets?limit=0"),
    ("list_labels", "200"): lambda client: client.get("/v1/galleries/digits/labels"),
    ("list_labels", "404"): lambda client: client.get("/v1/galleries/none/labels"),
    ("get_map", "200"): lambda client: client.get("/v1/galleries/digits/map"),
    ("get_map", "404"): lambda client: client.get("/v1/galleries/none/map"),
    ("get_map", "422"): lambda client: client.get("/v1/galleries/digits/map?colour_by=none"),
    ("list_map_items", "200"): lambda client: map_items(client, rows="0"),
    ("list_map_items", "404"): lambda client: map_items(client, "none", rows="0"),
    ("list_map_items", "409"): lambda client: map_items(client, bundle_id="another", rows="0"),
    ("list_map_items", "422"): lambda client: map_items(client, rows="-1"),
    **{
        (f"list_{name}", status): ask(client_get, f"{gallery}/{path}{options}")
        for name, path in (
            ("label_errors", "label-errors"),
            ("near_duplicates", "near-duplicates"),
        )
        for status, gallery, options in (
            ("200", "digits", ""),
            ("404", "none", ""),
            ("409", "digits", f"?cursor={FOREIGN_ITEMS}"),
            ("422", "digits", "?limit=0"),
        )
    },
    ("list_items", "200"): lambda client: client.get("/v1/galleries/digits/items"),
    ("list_items", "404"): lambda client: client.get("/v1/galleries/none/items"),
    ("list_items", "409"): lambda client: client.get(
        "/v1/galleries/digits/items", params={"cursor": FOREIGN_ITEMS}
    ),
    ("list_items", "422"): lambda client: client.get("/v1/galleries/digits/items?limit=0"),
    ("get_similar", "200"): lambda client: client.get(
        f"/v1/galleries/digits/items/{an_item(client)}/similar"
    ),
    ("get_similar", "404"): lambda client: client.get("/v1/galleries/digits/items/none/similar"),
    ("get_similar", "422"): lambda client: client.get(
        "/v1/galleries/digits/items/none/similar?limit=101"
    ),
    ("give_feedback", "200"): lambda client: feedback(client, "digits"),
    ("give_feedback", "404"): lambda client: feedback(client, "none"),
    ("give_feedback", "409"): lambda client: feedback(client, "digits"),
    ("give_feedback", "413"): lambda client: feedback(client, "digits", item_id="x" * 90_000),
    ("give_feedback", "415"): lambda client: client.post(
        "/v1/galleries/digits/feedback", content=b"{}", headers={"Content-Type": "text/plain"}
    ),
    ("give_feedback", "422"): lambda client: feedback(client, "digits", correct="perhaps"),
    ("list_feedback", "200"): lambda client: client.get("/v1/galleries/digits/feedback"),
    ("list_feedback", "404"): lambda client: client.get("/v1/galleries/none/feedback"),
    ("list_feedback", "409"): lambda client: client.get("/v1/galleries/digits/feedback"),
    ("list_feedback", "422"): lambda client: client.get("/v1/galleries/digits/feedback?limit=0"),
    ("undo_feedback", "200"): lambda client: client.delete(
        f"/v1/galleries/digits/feedback/{feedback(client, 'digits').json()['number']}"
    ),
    ("undo_feedback", "404"): lambda client: client.delete("/v1/galleries/digits/feedback/999"),
    ("undo_feedback", "409"): lambda client: client.delete("/v1/galleries/digits/feedback/1"),
    ("undo_feedback", "422"): lambda client: client.delete("/v1/galleries/digits/feedback/x"),
    ("list_review_cases", "200"): review("GET"),
    ("list_review_cases", "404"): review("GET", gallery="none"),
    ("list_review_cases", "409"): review("GET"),
    ("list_review_cases", "422"): review("GET", "?limit=0"),
    ("get_review_summary", "200"): review("GET", "/summary"),
    ("get_review_summary", "404"): review("GET", "/summary", gallery="none"),
    ("get_review_summary", "409"): review("GET", "/summary"),
    ("lease_review_cases", "200"): review("POST", "/leases", json={"reviewer": "ann"}),
    ("lease_review_cases", "404"): review("POST", "/leases", "none", json={"reviewer": "ann"}),
    ("lease_review_cases", "409"): review("POST", "/leases", json={"reviewer": "ann"}),
    ("lease_review_cases", "413"): review("POST", "/leases", json={"reviewer": "x" * 90_000}),
    ("lease_review_cases", "415"): review("POST", "/leases", content=b"{}", headers=TEXT),
    ("lease_review_cases", "422"): review("POST", "/leases", json={}),
    ("export_review_cases", "200"): review("GET", "/export?format=label_studio"),
    ("export_review_cases", "404"): review("GET", "/export?format=fiftyone", "none"),
    ("export_review_cases", "409"): review("GET", "/export?format=fiftyone"),
    ("export_review_cases", "422"): review("GET", "/export?format=excel"),
    ("import_decisions", "200"): review("POST", "/import", json=[]),
    ("import_decisions", "404"): review("POST", "/import", "none", json=[]),
    ("import_decisions", "409"): review("POST", "/import", json=[]),
    ("import_decisions", "413"): review("POST", "/import", json=[{"data": "x" * 90_000}]),
    ("import_decisions", "415"): review("POST", "/import", content=b"[]", headers=TEXT),
    ("import_decisions", "422"): review("POST", "/import", json={}),
    **{
        (operation, status): review(method, f"/{query_id}{rest}", gallery)
        for operation, method, rest in (
            ("get_review_case", "GET", ""),
            ("get_review_image", "GET", "/image"),
            ("end_review_lease", "DELETE", "/lease?reviewer=ann"),
            ("forget_review_case", "DELETE", ""),
        )
        for status, query_id, gallery in (
            ("404", "0" * 64, "none"),
            ("409", "0" * 64, "digits"),
            ("422", "short", "digits"),
        )
    },
    ("list_unknown", "200"): unknown(),
    ("list_unknown", "404"): unknown(gallery="none"),
    ("list_unknown", "409"): unknown(),
    ("list_unknown", "422"): unknown("?precision=2"),
    ("enrol_unknown", "404"): unknown(GROUP, json=NAMED),
    ("enrol_unknown", "409"): unknown(GROUP, json=NAMED),
    ("enrol_unknown", "413"): unknown(GROUP, json={"label": "x" * 90_000}),
    ("enrol_unknown", "415"): unknown(GROUP, content=b"{}", headers=TEXT),
    ("enrol_unknown", "422"): unknown(GROUP, json={}),
    ("end_review_lease", "200"): review("DELETE", f"/{'0' * 64}/lease?reviewer=ann"),
    ("get_item", "200"): lambda client: client.get(f"/v1/galleries/digits/items/{an_item(client)}"),
    ("get_item", "404"): lambda client: client.get("/v1/galleries/digits/items/none"),
    ("get_thumbnail", "200"): lambda client: client.get(
        f"/v1/galleries/digits/items/{an_item(client)}/thumbnail"
    ),
    ("get_thumbnail", "304"): lambda client: client.get(
        thumbnail := f"/v1/galleries/digits/items/{an_item(client)}/thumbnail",
        headers={"If-None-Match": client.get(thumbnail).headers["ETag"]},
    ),
    ("get_thumbnail", "422"): lambda client: client.get(
        f"/v1/galleries/digits/items/{an_item(client)}/thumbnail?size=huge"
    ),
    ("get_thumbnail", "404"): lambda client: client.get(
        "/v1/galleries/digits/items/none/thumbnail"
    ),
    ("get_sample", "200"): lambda client: client.get("/v1/galleries/digits/samples/1"),
    ("get_sample", "304"): lambda client: client.get(
        "/v1/galleries/digits/samples/1",
        headers={
            "If-None-Match": client.get("/v1/galleries/digits/samples/1").headers["ETag"],
            "Range": "items=0-1",
        },
    ),
    ("get_sample", "422"): lambda client: client.get("/v1/galleries/digits/samples/1?size=large"),
    ("get_sample", "404"): lambda client: client.get("/v1/galleries/digits/samples/none"),
    **{
        ("put_item", status): ask(put_item, *args)
        for status, args in {
            "200": (picture("PNG"),),
            "400": (b"",),
            "404": (picture("PNG"), "none"),
            "409": (picture("PNG"),),
            "413": (bytes(10_000),),
            "415": (b"text",),
            "422": (truncated(),),
            "503": (picture("PNG", seed=503),),
        }.items()
    },
    ("put_items", "200"): lambda client: put_items(client, "digits", 1),
    ("put_items", "404"): lambda client: put_items(client, "none", 1),
    ("put_items", "409"): lambda client: put_items(client, "digits", 1),
    ("put_items", "413"): lambda client: put_items(client, "digits", 1, bytes(90_000)),
    ("put_items", "415"): lambda client: client.post("/v1/galleries/digits/items", json={}),
    ("put_items", "422"): lambda client: put_items(client, "digits", 2),
    **{
        ("edit_item", status): ask(edit_item, *args)
        for status, args in {
            "200": ({"label": "x"},),
            "404": ({"label": "x"}, "digits", "none"),
            "409": ({"label": "x"},),
            "413": ({"label": "x" * 90_000},),
            "422": ({},),
        }.items()
    },
    ("edit_item", "415"): lambda client: client.patch(
        "/v1/galleries/digits/items/none", content=b"x", headers=TEXT
    ),
    ("delete_item", "200"): lambda client: (
        put_item(client, picture("PNG")),
        client.delete("/v1/galleries/digits/items/new"),
    )[1],
    ("delete_item", "404"): lambda client: client.delete("/v1/galleries/digits/items/none"),
    ("delete_item", "422"): lambda client: client.delete(
        "/v1/galleries/digits/items/none", headers={"Idempotency-Key": "x" * 201}
    ),
    ("delete_item", "409"): lambda client: client.delete("/v1/galleries/digits/items/none"),
    ("compact_gallery", "404"): lambda client: client.post("/v1/galleries/none/compact"),
    ("compact_gallery", "409"): lambda client: client.post("/v1/galleries/digits/compact"),
    ("list_bundles", "200"): lambda client: client.get("/v1/galleries/digits/bundles"),
    ("list_bundles", "404"): lambda client: client.get("/v1/galleries/none/bundles"),
    ("activate_bundle", "200"): lambda client: activate(client, serving(client)),
    ("activate_bundle", "404"): lambda client: activate(client, "0" * 16),
    ("rollback_bundle", "404"): lambda client: client.post("/v1/galleries/none/bundles/rollback"),
    ("rollback_bundle", "409"): lambda client: client.post("/v1/galleries/digits/bundles/rollback"),
    ("create_gallery", "201"): create,
    ("create_gallery", "404"): lambda client: create(client, like="none"),
    ("create_gallery", "409"): create,
    ("create_gallery", "413"): lambda client: create(client, description="x" * 100_000),
    ("create_gallery", "415"): lambda client: client.post("/v1/galleries", content=b"x"),
    ("create_gallery", "422"): lambda client: create(client, name="No name"),
    ("describe_gallery", "200"): lambda client: change(client, created(client), title="T"),
    ("describe_gallery", "404"): lambda client: change(client, "none", title="T"),
    ("describe_gallery", "409"): lambda client: change(client, "digits", title="T"),
    ("describe_gallery", "413"): lambda client: change(client, "none", title="T" * 100_000),
    ("describe_gallery", "415"): lambda client: client.patch("/v1/galleries/none", content=b"x"),
    ("describe_gallery", "422"): lambda client: change(client, "none", title=1),
    ("rename_gallery", "200"): lambda client: rename(client, created(client), uuid.uuid4().hex),
    ("rename_gallery", "404"): lambda client: rename(client, "none", "some"),
    ("rename_gallery", "409"): lambda client: rename(client, "digits", "some"),
    ("rename_gallery", "413"): lambda client: rename(client, "none", "x" * 100_000),
    ("rename_gallery", "415"): lambda client: client.post(
        "/v1/galleries/none/rename", content=b"x"
    ),
    ("rename_gallery", "422"): lambda client: rename(client, "none", "No name"),
    ("drop_gallery", "200"): lambda client: drop(client, created(client)),
    ("drop_gallery", "404"): lambda client: drop(client, "none"),
    ("drop_gallery", "409"): lambda client: drop(client, "digits"),
    ("start_shadow", "404"): ask(shadow, "digits", "0" * 16),
    ("start_shadow", "409"): lambda client: shadow(client, "digits", serving(client)),
    ("start_shadow", "413"): ask(shadow, "digits", "x" * 100_000),
    ("start_shadow", "415"): lambda client: client.put(
        "/v1/galleries/digits/shadow", content=b"x", headers=TEXT
    ),
    ("start_shadow", "422"): ask(shadow, "digits", 1),
    ("get_shadow", "404"): lambda client: client.get("/v1/galleries/digits/shadow"),
    ("end_shadow", "404"): lambda client: client.delete("/v1/galleries/digits/shadow"),
    ("adopt_absent_share", "200"): calibrated("POST", "absent-share", json={"share": 0.05}),
    ("adopt_absent_share", "404"): calibrated("POST", "absent-share", "none", json={"share": 0.05}),
    ("adopt_absent_share", "413"): calibrated("POST", "absent-share", json={"x": "x" * 100_000}),
    ("adopt_absent_share", "415"): calibrated("POST", "absent-share", content=b"x", headers=TEXT),
    ("adopt_absent_share", "422"): calibrated("POST", "absent-share", json={"share": 1}),
    ("reset_absent_share", "200"): calibrated("DELETE", "absent-share"),
    ("reset_absent_share", "404"): calibrated("DELETE", "absent-share", "none"),
    ("acknowledge_drift", "200"): calibrated("POST", "acknowledge"),
    ("acknowledge_drift", "404"): calibrated("POST", "acknowledge", "none"),
    ("calibrate_gallery", "404"): calibrate("none", json={}),
    ("calibrate_gallery", "409"): calibrate("digits", json={}),
    ("calibrate_gallery", "413"): calibrate("none", json={"x": "x" * 100_000}),
    ("calibrate_gallery", "415"): calibrate("none", content=b"x", headers=TEXT),
    ("calibrate_gallery", "422"): calibrate("digits", json={"max_error": 1}),
    ("get_calibration_run", "200"): lambda client: client.get(
        "/v1/galleries/digits/calibration/run"
    ),
    ("get_calibration_run", "404"): lambda client: client.get("/v1/galleries/none/calibration/run"),
    ("drop_gallery", "422"): lambda client: client.delete("/v1/galleries/none"),
    ("get_usage", "200"): lambda client: client.get("/v1/usage"),
    ("livez", "200"): lambda client: client.get("/livez"),
    ("readyz", "200"): lambda client: client.get("/readyz"),
    ("metrics", "200"): lambda client: client.get("/metrics"),
}


TRIED_ELSEWHERE = {
    ("activate_bundle", "409"),
    ("rollback_bundle", "200"),
    ("readyz", "503"),
    ("compact_gallery", "200"),
    ("search_text", "200"),
    ("calibrate_gallery", "202"),
    *((f"{verb}_shadow", "200") for verb in ("start", "get", "end")),
    ("get_review_case", "200"),
    ("get_review_image", "200"),
    ("forget_review_case", "200"),
    *(
        (name, "507")
        for name in (
            *("put_item", "put_items", "edit_item", "delete_item", "compact_gallery"),
            "calibrate_gallery",
        )
    ),
    *((f"{verb}_gallery", "507") for verb in ("create", "describe", "rename", "drop")),
    *(("enrol_unknown", status) for status in ("200", "507")),
    *(
        (name, "507")
        for name in (
            *("give_feedback", "undo_feedback", "import_decisions"),
            *("lease_review_cases", "end_review_lease", "forget_review_case"),
        )
    ),
}
"""In test_tenants.py, test_galleries.py, test_answers.py, test_changes.py, test_texts.py,
test_review.py, test_shadow.py, test_unknown.py and test_enrolling_decisions.py: they want another
state of the service, or another gallery."""

IDS = {
    "gallery": "digits",
    "item_id": 1,
    "sample_id": 1,
    "bundle_id": 1,
    "number": 1,
    "query_id": 1,
    "group": 1,
}

NOT_UNDERSTOOD = {"400", "422"}
"""What any request is answered of which a part is not understood, see test_understood.py."""

IN_A_CROWD = {"503", "504"}
"""What any request that computes may be answered when there are too many."""


def put_items(client: TestClient, gallery: str, n: int, image: bytes = b"") -> httpx2.Response:
    """One image, and as many entries."""
    entries = [{"id": f"n{number}"} for number in range(n)]
    return client.post(
        f"/v1/galleries/{gallery}/items",
        files=[("images", ("i", image))],
        data={"items": json.dumps(entries)},
    )


def created(client: TestClient) -> str:
    name: str = create(client).json()["name"]
    return name


def change(client: TestClient, gallery: str, **said: object) -> httpx2.Response:
    return client.patch(f"/v1/galleries/{gallery}", json=said)


def rename(client: TestClient, gallery: str, name: str) -> httpx2.Response:
    return client.post(f"/v1/galleries/{gallery}/rename", json={"name": name})


def drop(client: TestClient, gallery: str) -> httpx2.Response:
    return client.delete(f"/v1/galleries/{gallery}", params={"confirm": gallery})


def serving(client: TestClient) -> str:
    bundle_id: str = client.get("/v1/galleries/digits/bundles").json()["serving"]
    return bundle_id


def activate(client: TestClient, bundle_id: str) -> httpx2.Response:
    return client.post(f"/v1/galleries/digits/bundles/{bundle_id}/activate")


def feedback(client: TestClient, gallery: str, **said: Any) -> httpx2.Response:
    """Confirm the first result of a query; or whatever else is said."""
    answer = search(client, picture("PNG", 8, 8)).json()
    first = {"query_id": answer["query"]["id"], "item_id": answer["results"][0]["id"]}
    return client.post(f"/v1/galleries/{gallery}/feedback", json={**first, "correct": True, **said})


def next_cursor(client: TestClient) -> str:
    cursor: str = search(client, picture("PNG")).json()["next_cursor"]
    return cursor


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
        if status != "500"  # below
    }
    crowded = {
        (operation["operationId"], status)
        for path, _, operation in operations(document)
        for status in IN_A_CROWD | ({"408"} if "requestBody" in operation else set())
        if path.startswith("/v1/")
    }
    assert crowded <= documented
    refusals = {(name, status) for name, status in documented if status in REFUSALS}
    names = {operation["operationId"] for *_, operation in operations(document)}
    anywhere = {(name, status) for name in names for status in NOT_UNDERSTOOD | {"431"}}
    assert anywhere <= documented
    tried = set(REQUESTS) | TRIED_ELSEWHERE
    assert documented - refusals - crowded - anywhere == tried - crowded - anywhere
    open_to_all = {"livez", "readyz"}
    for status in ("401", "429"):
        named = {name for name, refusal in refusals if refusal == status}
        assert named == {name for name, _ in REQUESTS} - open_to_all
    more = {"activate_bundle", "rollback_bundle", "compact_gallery", "forget_review_case"}
    more |= {
        "put_item",
        "put_items",
        "edit_item",
        "delete_item",
        "metrics",
        "enrol_unknown",
    } | REVIEWS
    more |= {"start_shadow", "get_shadow", "end_shadow"}
    more |= {"adopt_absent_share", "reset_absent_share", "acknowledge_drift"}
    more |= {"create_gallery", "describe_gallery", "rename_gallery", "drop_gallery"}
    more |= {"calibrate_gallery"}
    assert {name for name, refusal in refusals if refusal == "403"} == more


@pytest.fixture(scope="module")
def apps(
    bundle: Bundle, digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[bool, TestClient]]:
    """Services that keep feedback and take changes, and that do not."""
    root = tmp_path_factory.mktemp("changing") / "bundles"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate_in(root, digits_bundle.name)
    as_untrained(root / digits_bundle.name)
    changing = replace(bundle.within(root), directory=root / digits_bundle.name)
    fixed = open_bundle(digits_bundle, "cpu", threads=1)
    file = tmp_path_factory.mktemp("feedback") / "feedback.sqlite3"
    bounds: dict[str, Any] = {"max_image_bytes": 9_000, "max_batch_bytes": 9_000, "decoders": 0}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("service.serving.engine.secret_of", lambda *_: SECRET)
        apps = [
            create_app(
                Settings(
                    feedback=file,
                    review_reasons=CASE_REASONS,
                    galleries=root.parent / "g",
                    **bounds,
                ),
                [changing],
            ),
            create_app(Settings(**bounds), [fixed]),
        ]
        with LocalClient(apps[0]) as keeping, LocalClient(apps[1]) as forgetting:
            yield {True: keeping, False: forgetting}


@pytest.fixture(scope="module")
def documented(apps: dict[bool, TestClient]) -> dict[bool, dict[str, Any]]:
    """The operations of each, by their names."""
    return {
        keeps: {
            operation["operationId"]: operation
            for *_, operation in operations(client.get("/openapi.json").json())
        }
        for keeps, client in apps.items()
    }


@pytest.mark.parametrize(("operation_id", "status"), REQUESTS)
def test_each_documented_answer_is_given(
    apps: dict[bool, TestClient],
    documented: dict[bool, dict[str, Any]],
    bundle: Bundle,
    operation_id: str,
    status: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(images: object, at_once: object) -> None:
        raise EncoderError("The encoder cannot be run.")

    if status == "503":
        monkeypatch.setattr(bundle.retriever.encoder, "encode", fail)
    client = apps[status != "409"]
    response = REQUESTS[operation_id, status](client)
    assert str(response.status_code) == status
    answer = documented[status != "409"][operation_id]["responses"][status]
    if status == "304":
        assert response.content == b""
    else:
        assert response.headers["content-type"].split(";")[0] in answer["content"]


@pytest.mark.parametrize("status", sorted(IN_A_CROWD))
def test_in_a_crowd_every_request_that_computes_is_answered_as_documented(
    start: StartClient, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(deadline_s=0.01, max_in_flight=1)
    application: Any = client.app
    admission = application._app._app
    document = client.get("/openapi.json").json()
    admission._n = 1 if status == "503" else 0
    monkeypatch.setattr(admission, "_app", lambda *_: asyncio.sleep(60))
    for path, method, operation in operations(document):
        if path.startswith("/v1/"):
            filled = path.format(**IDS)
            response = client.request(method, filled)
            assert str(response.status_code) == status, path
            assert response.headers["content-type"] in operation["responses"][status]["content"]
            assert ("Retry-After" in response.headers) == (status == "503")


@pytest.mark.parametrize("status", sorted(REFUSALS))
def test_each_documented_refusal_is_given(
    start: StartClient, keys_file: KeysFile, status: str
) -> None:
    client = start(keys=keys_file.path)
    if status == "429":
        client.headers["X-API-Key"] = keys_file.make("admin", rate_limit="1/day")
        client.get("/v1/galleries")  # the one that is allowed
    elif status == "403":
        client.headers["X-API-Key"] = keys_file.make("read", galleries=("some",))
    asked = 0
    for path, method, operation in operations(client.get("/openapi.json").json()):
        if status in operation["responses"]:
            response = client.request(method, path.format(**IDS))
            assert str(response.status_code) == status, (method, path)
            assert response.headers["content-type"] in operation["responses"][status]["content"]
            asked += 1
    assert asked


@pytest.mark.parametrize(
    ("settings", "optional"),
    [
        ({}, {"read", "review", "write", "admin"}),
        ({"keys": True}, set()),
        ({"keys": True, "anonymous": True}, {"read", "review", "write"}),
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
        scope = {
            **dict.fromkeys(REVIEWS, "review"),
            "forget_review_case": "write",
            "put_item": "write",
            "put_items": "write",
            "edit_item": "write",
            "delete_item": "write",
            "create_gallery": "admin",
            "describe_gallery": "admin",
            "rename_gallery": "admin",
            "drop_gallery": "admin",
            "adopt_absent_share": "admin",
            "calibrate_gallery": "admin",
            "reset_absent_share": "admin",
            "acknowledge_drift": "admin",
            "start_shadow": "admin",
            "get_shadow": "admin",
            "end_shadow": "admin",
            "enrol_unknown": "write",
            "compact_gallery": "admin",
            "activate_bundle": "admin",
            "rollback_bundle": "admin",
        }.get(name, "read")
        without: list[dict[str, Any]] = [{}] if scope in optional else []
        assert operation["security"] == [{"bearer": [scope]}, {"api_key": [scope]}, *without]


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nbytes\r\n--x--\r\n'
)


REFUSED_FIRST = {f"{verb}_gallery" for verb in ("create", "describe", "rename", "drop")}
REFUSED_FIRST |= {"get_usage"}
"""Operations that read a request, or need nothing more of the service, before anything fails."""


def test_what_nobody_foresaw_is_documented_where_it_may_happen(
    document: dict[str, Any], client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("galleries", "created"):
        monkeypatch.setattr(ServiceState, part, property(), raising=False)
    monkeypatch.setattr(ServiceState, "telemetry", property(), raising=False)
    client = LocalClient(client.app, raise_server_exceptions=False)
    for path, method, operation in operations(document):
        if operation["operationId"] in REFUSED_FIRST:
            continue
        filled = re.sub(r"{(\w+)}", "digits", path)
        content = operation.get("requestBody", {"content": {"": {}}})["content"]
        media_type = next(iter(content)).replace("*", "png")
        several = operation["operationId"] in {"search_batch", "put_items"}
        body = FORM.replace(b'"image"', b'"images"') if several else FORM
        body = body if media_type else b""
        body = b"{}" if "json" in media_type else body
        headers = {"Content-Type": f"{media_type}; boundary=x"}
        response = client.request(method, filled, headers=headers, content=body)
        failed = response.status_code == 500
        assert failed == ("500" in operation["responses"]), (path, response.text)
        if failed:
            assert response.json()["code"] == "internal_error"


def test_event_loop_answers_others_while_the_document_is_made() -> None:
    """FastAPI needs about a second to make it; a request for it must not delay health checks."""
    app, begun, goes_on = FastAPI(), threading.Event(), threading.Event()
    makers = []

    def make() -> dict[str, Any]:
        makers.append(threading.get_ident())
        begun.set()
        assert goes_on.wait(TIMEOUT_S)
        return {"openapi": "3.1.0"}

    app.openapi = make  # type: ignore[method-assign]
    app.router.routes.insert(0, description_route(app, "/openapi.json"))

    async def ask() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://vouch") as client:
            asked = [asyncio.create_task(client.get("/openapi.json")) for _ in range(2)]
            assert await asyncio.to_thread(begun.wait, TIMEOUT_S)
            goes_on.set()
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask())
    assert [one.json() for one in answers] == [{"openapi": "3.1.0"}] * 2
    assert len(makers) == 1
    assert makers != [threading.get_ident()]
