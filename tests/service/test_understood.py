"""What a request holds is read, or refused by name: nothing in it is passed over."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

DOCUMENT = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
IDS = dict.fromkeys(("item_id", "sample_id", "bundle_id", "number"), "1")
IDS |= {"gallery": "digits", "query_id": "0" * 64, "group": "0" * 16}

GALLERY = "/v1/galleries/digits"
SEARCH = f"{GALLERY}/search"
SEVENS = '{"label": "7"}'
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def content_of(operation: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    return content


def fields_of(operation: dict[str, Any], media_type: str) -> dict[str, Any]:
    """The schema of a body."""
    schema = content_of(operation)[media_type]["schema"]
    if "$ref" in schema:
        found: dict[str, Any] = DOCUMENT["components"]["schemas"][schema["$ref"].split("/")[-1]]
        return found
    return {}


def ask(client: TestClient, image: bytes, **fields: str | list[str]) -> httpx2.Response:
    return client.post(SEARCH, files={"image": ("a.png", image)}, data=fields)


def part(name: str, value: bytes, *headers: str, file: str | None = None) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"'
    if file is not None:
        disposition += f'; filename="{file}"'
    head = "\r\n".join([disposition, *headers])
    return b"--x\r\n" + head.encode() + b"\r\n\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--x--\r\n"


def post_form(client: TestClient, body: bytes) -> httpx2.Response:
    return client.post(SEARCH, content=body, headers=FORM)


def named(response: httpx2.Response) -> dict[str, str]:
    """The problem with each field that is named as wrong."""
    assert response.status_code == 422, response.text
    return {error["pointer"]: error["detail"] for error in response.json()["errors"]}


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_query_of_each_operation_with_an_unknown_option_is_refused_by_name(
    client: TestClient, operation_id: str
) -> None:
    method, path, _ = OPERATIONS[operation_id]
    response = client.request(method, path.format(**IDS), params={"colour": "red"})
    assert "/query/colour" in named(response)


@pytest.mark.parametrize(
    "operation_id",
    [name for name, (*_, one) in OPERATIONS.items() if "multipart/form-data" in content_of(one)],
)
def test_form_of_each_operation_with_an_unknown_field_is_refused_by_name(
    client: TestClient, operation_id: str
) -> None:
    method, path, operation = OPERATIONS[operation_id]
    assert fields_of(operation, "multipart/form-data")["additionalProperties"] is False
    files = {"colour": (None, "red")}
    assert "/body/colour" in named(client.request(method, path.format(**IDS), files=files))


DOCUMENTS = {
    name: fields_of(one, "application/json")
    for name, (*_, one) in OPERATIONS.items()
    if "application/json" in content_of(one)
}


@pytest.mark.parametrize("operation_id", [name for name, schema in DOCUMENTS.items() if schema])
def test_document_of_each_operation_with_an_unknown_field_is_refused_by_name(
    start: Any, tmp_path: Path, operation_id: str
) -> None:
    kept = {"feedback": tmp_path / "f.sqlite3", "review_reasons": ("ambiguous",)}
    method, path, _ = OPERATIONS[operation_id]
    client = start(galleries=tmp_path / "galleries", **kept)
    response = client.request(method, path.format(**IDS), json={"colour": "red"})
    assert DOCUMENTS[operation_id]["additionalProperties"] is False
    assert "/body/colour" in named(response)


def test_only_documents_of_other_tools_may_hold_unknown_fields() -> None:
    assert [name for name, schema in DOCUMENTS.items() if not schema] == ["import_decisions"]


def test_unknown_field_inside_a_document_is_refused_by_name(client: TestClient) -> None:
    neighbours = [{"id": "a", "similarity": 0.5, "lable": "7"}]
    response = client.post(f"{GALLERY}/decide", json={"mean": [1.0], "neighbours": neighbours})
    assert named(response) == {
        "/body/neighbours/0/lable": "is not a field here; did you mean `label`?"
    }
    assert response.json()["detail"].endswith("did you mean `label`? See /docs.")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [("fliter", "filter"), ("Limit", "limit"), ("expected_absense", "expected_absent")],
)
def test_misspelt_option_is_refused_with_the_name_that_was_meant(
    client: TestClient, digit: bytes, sent: str, meant: str
) -> None:
    in_form = named(ask(client, digit, **{sent: "7"}))[f"/body/{sent}"]
    raw = client.post(f"{SEARCH}/raw", params={sent: "7"}, content=digit)
    in_query = named(raw)[f"/query/{sent}"]
    encoded = {"image_base64": b64encode(digit).decode(), sent: 7}
    in_document = named(client.post(f"{SEARCH}/json", json=encoded))[f"/body/{sent}"]
    assert all(f"did you mean `{meant}`?" in text for text in (in_form, in_query, in_document))


def test_unlike_option_is_refused_with_all_names(client: TestClient, digit: bytes) -> None:
    assert "known: alpha, coverage" in named(ask(client, digit, topk="2"))["/body/topk"]


@pytest.mark.parametrize("path", [SEARCH, f"{SEARCH}/json"])
def test_option_of_the_body_in_the_address_is_refused(
    client: TestClient, digit: bytes, path: str
) -> None:
    response = client.post(path, params={"filter": SEVENS}, files={"image": ("a", digit)})
    assert named(response) == {"/query/filter": "is read from the body here"}


def test_option_of_the_address_in_the_body_is_refused(client: TestClient) -> None:
    """As clients of Elasticsearch send it."""
    response = client.request("GET", f"{GALLERY}/items", json={"filter": {"label": "7"}})
    assert "this path takes no body" in named(response)["/body"]
    assert client.request("GET", f"{GALLERY}/items", json={}).status_code == 200


def test_single_option_that_is_sent_twice_is_refused(client: TestClient, digit: bytes) -> None:
    expected = "is sent 2 times; send it once"
    assert named(ask(client, digit, limit=["2", "3"])) == {"/body/limit": expected}
    twice = client.get(f"{GALLERY}/items", params={"filter": [SEVENS, "{}"]})
    assert named(twice) == {"/query/filter": expected}
    images = [("image", ("a", digit)), ("image", ("b", digit))]
    assert named(client.post(SEARCH, files=images)) == {"/body/image": expected}


@pytest.mark.parametrize(
    ("path", "name"), [("items", "limit"), ("facets", "limit"), ("search", "alpha")]
)
def test_number_with_an_underscore_is_refused(
    client: TestClient, digit: bytes, path: str, name: str
) -> None:
    value = "0.0_5" if name == "alpha" else "2_0"
    if path == "search":
        refused = client.post(
            f"{GALLERY}/{path}", files={"image": ("a", digit)}, data={name: value}
        )
    else:
        refused = client.get(f"{GALLERY}/{path}", params={name: value})
    assert refused.status_code == 422
    assert f"/{name}: should be a number without underscores" in refused.json()["detail"]


@pytest.mark.parametrize("path", ["search/json", "items"])
def test_json_object_with_a_name_twice_is_refused(
    client: TestClient, digit: bytes, path: str
) -> None:
    if path == "items":
        sent: dict[str, Any] = {
            "files": {"images": ("a", digit)},
            "data": {"items": '[{"id": "a", "id": "b"}]'},
        }
    else:
        body = f'{{"image_base64": "{b64encode(digit).decode()}", "limit": 1, "limit": 2}}'
        sent = {"content": body, "headers": {"Content-Type": "application/json"}}
    refused = client.post(f"{GALLERY}/{path}", **sent)
    assert refused.status_code == 422
    assert "twice in one object" in refused.json()["detail"]


def test_filter_with_a_name_twice_is_refused(client: TestClient, digit: bytes) -> None:
    refused = ask(client, digit, filter='{"label": "7", "label": {"exists": true}}')
    assert refused.status_code == 422
    assert "'label' twice" in refused.json()["detail"]


def test_truth_value_in_place_of_a_number_is_refused(client: TestClient, digit: bytes) -> None:
    encoded = {"image_base64": b64encode(digit).decode(), "limit": True}
    refused = client.post(f"{SEARCH}/json", json=encoded)
    assert named(refused) == {"/body/limit": "should be a number, not true or false"}


def test_field_that_is_left_empty_was_not_sent(client: TestClient, digit: bytes) -> None:
    response = ask(client, digit, limit="", alpha="")
    assert response.status_code == 200, response.text
    assert len(response.json()["results"]) == 10


@pytest.mark.parametrize("values", [("3", ""), ("", "3"), ("", "3", "")])
def test_empty_field_beside_another_changes_nothing(
    client: TestClient, digit: bytes, values: tuple[str, ...]
) -> None:
    image = part("image", digit, "Content-Type: image/png", file="a.png")
    limits = [part("limit", value.encode()) for value in values]
    answer = post_form(client, form(image, *limits, part("image", b"", file="")))
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == 3


def test_empty_filter_of_a_form_is_refused(client: TestClient, digit: bytes) -> None:
    """A variable that is not set, in the script that keeps tenants apart."""
    assert "is empty" in named(ask(client, digit, filter=""))["/body/filter"]


@pytest.mark.parametrize("name", ["Idempotency-Key", "Content-Type", "X-API-Key"])
def test_header_of_one_value_that_is_sent_twice_is_refused(client: TestClient, name: str) -> None:
    values = [(name, "multipart/form-data; boundary=a"), (name, "multipart/form-data; boundary=b")]
    response = client.put("/v1/galleries/digits/items/x", headers=values, content=b"")
    assert response.status_code == 422
    assert f"/header/{name.lower()}: was sent several times" in response.json()["detail"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("header", ["If-Match", "If-None-Match", "Content-Range"])
def test_write_under_a_condition_is_refused(client: TestClient, method: str, header: str) -> None:
    path = f"{GALLERY}/items/{client.get(f'{GALLERY}/items').json()['items'][0]['id']}"
    response = client.request(method, path, headers={header: "*"})
    assert f"/header/{header.lower()}" in named(response)
    assert client.get(path).status_code == 200


def test_empty_file_field_is_a_missing_file(client: TestClient) -> None:
    refused = post_form(client, form(part("image", b"", file="")))
    assert list(named(refused)) == ["/body/image"]


@pytest.mark.parametrize(
    ("fields", "pointer"), [({"limit": "x"}, "limit"), ({"alpha": "2"}, "alpha")]
)
def test_value_that_is_wrong_is_named(
    client: TestClient, digit: bytes, fields: dict[str, str], pointer: str
) -> None:
    assert list(named(ask(client, digit, **fields))) == [f"/body/{pointer}"]


def test_text_in_place_of_a_file_is_refused(client: TestClient) -> None:
    refused = client.post(SEARCH, files={"image": (None, "a picture")})
    assert named(refused) == {"/body/image": "Must be sent as a file, with a file name."}
    assert ".." not in refused.json()["detail"]


def test_file_without_a_file_name_is_refused_in_words(client: TestClient, digit: bytes) -> None:
    refused = post_form(client, form(part("image", digit)))
    assert refused.status_code == 400
    assert "a file needs a file name" in refused.json()["detail"]


def test_form_that_ends_early_is_refused_wherever_it_ends(client: TestClient, digit: bytes) -> None:
    image = part("image", digit, "Content-Type: image/png", file="a.png")
    whole = form(image, part("limit", b"1"), part("filter", SEVENS.encode()))
    for cut in range(3, len(whole), 7):
        refused = post_form(client, whole[:-cut])
        assert refused.status_code == 400, cut
        assert refused.json()["code"] == "invalid_form"
    assert "closing boundary" in post_form(client, whole[:-12]).json()["detail"]
    assert post_form(client, whole[:-2]).status_code == 200  # its last line has no end


def test_form_that_goes_on_after_its_end_is_refused(client: TestClient, digit: bytes) -> None:
    whole = form(part("image", digit, file="a.png"))
    refused = post_form(client, whole + part("filter", SEVENS.encode()))
    assert refused.status_code == 400
    assert "after its closing boundary" in refused.json()["detail"]
    assert post_form(client, whole + b"\r\n").status_code == 200


def test_body_that_is_no_form_is_refused(client: TestClient) -> None:
    for body in (b"--y\r\nwhatever", b"whatever", b""):
        response = post_form(client, body)
        assert response.status_code == 400
        assert response.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, deflate", "x-none"])
def test_body_in_a_content_coding_is_refused_by_name(
    client: TestClient, digit: bytes, coding: str
) -> None:
    headers = {"Content-Encoding": coding}
    refused = client.post(f"{SEARCH}/raw", content=digit, headers=headers)
    assert refused.status_code == 415
    assert "Content-Encoding" in refused.json()["detail"]
    plain = client.post(f"{SEARCH}/raw", content=digit, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Transfer-Encoding: base64", 415),
        ("Content-Transfer-Encoding: quoted-printable", 415),
        ("Content-Transfer-Encoding: binary", 200),
        ("Content-Encoding: gzip", 415),
        ("Content-Type: text/plain; charset=utf-16", 415),
        ("Content-Type: text/plain; charset=utf-8", 200),
        ("Content-Type: text/plain; charset=ISO-8859-1", 200),  # of ASCII; Apache's client sends it
    ],
)
def test_part_in_an_encoding_that_is_not_read_is_refused_by_name(
    client: TestClient, digit: bytes, header: str, status: int
) -> None:
    image = part("image", digit, file="a.png")
    response = post_form(client, form(image, part("limit", b"1", header)))
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    "header", ["Content-Type: text/plain", "Content-Type: text/plain; charset=iso-8859-1"]
)
def test_text_that_is_not_utf_8_is_refused(client: TestClient, digit: bytes, header: str) -> None:
    image = part("image", digit, file="a.png")
    sevens = part("filter", '{"label": "é"}'.encode("latin-1"), header)
    response = post_form(client, form(image, sevens))
    assert response.status_code in {400, 415}
    assert "UTF-8" in response.json()["detail"]


BAD_ADDRESSES = [
    ("items/%FF", "not valid UTF-8"),  # would be U+FFFD, as would any other such byte
    ("items/%C0%AF", "not valid UTF-8"),
    ("items/%ED%A0%80", "not valid UTF-8"),
    ("items/50%", "hexadecimal"),  # would be the item of 50%25
    ("items/%zz", "hexadecimal"),
    ("items?filter=%FF", "not valid UTF-8"),
    ("items?filter=%", "hexadecimal"),
    ("%69tems/a", "Percent-encode only the names"),
]


@pytest.mark.parametrize(("address", "reason"), BAD_ADDRESSES)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_address_that_reads_as_another_is_refused(
    client: TestClient, method: str, address: str, reason: str
) -> None:
    if method == "DELETE" and "?" in address:
        address = address.replace("items", "items/a")
    response = request_raw(client, method, f"{GALLERY}/{address}")
    assert response.status_code == 400, response.text
    assert reason in response.json()["detail"]


@pytest.mark.parametrize(
    "address",
    ["/v1/galleries/digits%2Fitems%2Fdigit-0160", "/v1/galleries/digits/items/a%2Fthumbnail"],
)
def test_encoded_slash_between_parts_of_a_path_is_refused(client: TestClient, address: str) -> None:
    response = request_raw(client, "GET", address)
    assert response.status_code == 400
    assert "%2F" in response.json()["detail"]


def request_raw(client: TestClient, method: str, address: str) -> httpx2.Response:
    """Send an address as it is written; the client would correct it."""
    request = client.build_request(method, "/")
    request.url = httpx2.URL("http://127.0.0.1").copy_with(raw_path=address.encode())
    return client.send(request)
