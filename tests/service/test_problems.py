"""Every error of the family, and every one that a request can cause, as a client meets it."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import Request
from starlette.testclient import TestClient

from model_store import errors
from model_store.bundles.bundle import Bundle
from model_store.errors import EncoderError, VouchError
from service.http.limits import FORM_ALLOWANCE
from service.http.problems import forget_frames, problem_response, status_of
from tests.end_to_end.questions import boasting_png, picture, search, search_by_stream, truncated

StartClient = Callable[..., TestClient]
Ask = Callable[[TestClient], httpx2.Response]

ROOT = Path(__file__).parents[2]
MAX_BYTES = 50_000
MAX_PIXELS = 10_000


def family(root: type[VouchError] = VouchError) -> Iterator[type[VouchError]]:
    """Every class of `model_store.errors`."""
    yield root
    for child in root.__subclasses__():
        yield from family(child)


FAMILY = sorted(set(family()), key=lambda error: error.__name__)
PARENTS = {error.__name__: error.__bases__[0].__name__ for error in FAMILY}

STATUSES = {
    "VouchError": 500,
    "ImageError": 500,
    "EmptyImage": 400,
    "UnsupportedImage": 415,
    "ImageTooLarge": 413,
    "ImageTooCostly": 422,
    "CorruptImage": 422,
    "InvalidRequest": 422,
    "AccessError": 500,
    "Unauthenticated": 401,
    "Forbidden": 403,
    "RateLimited": 429,
    "SearchesUsedUp": 429,
    "QuotaExceeded": 403,
    "MisdirectedRequest": 421,
    "InvalidHead": 400,
    "InvalidForm": 400,
    "InvalidCursor": 422,
    "InvalidFilter": 422,
    "OrderUnavailable": 422,
    "UnknownSource": 422,
    "InvalidVector": 422,
    "ImagesNotTaken": 422,
    "InvalidText": 422,
    "TextUnavailable": 422,
    "OutdatedCursor": 409,
    "UnsupportedMediaType": 415,
    "NotFound": 404,
    "GalleryNotFound": 404,
    "ItemNotFound": 404,
    "SampleNotFound": 404,
    "PathNotFound": 404,
    "MethodNotAllowed": 405,
    "QueryNotFound": 404,
    "DecisionNotFound": 404,
    "GroupNotFound": 404,
    "ShadowNotFound": 404,
    "IdentitiesUnavailable": 409,
    "FeedbackNotKept": 409,
    "KeysError": 500,
    "KeysRequired": 500,
    "EncoderError": 503,
    "EncoderContractError": 503,
    "ProviderUnavailable": 503,
    "BundleError": 503,
    "BundleNotFound": 404,
    "PointerUnreadable": 503,
    "ActivationRefused": 409,
    "ArchiveError": 500,
    "WriteError": 503,
    "WriteRefused": 409,
    "GalleryExists": 409,
    "KeyReused": 422,
    "GallerySuperseded": 503,
    "GalleryUnavailable": 503,
    "ChangeUnconfirmed": 503,
    "StorageBusy": 503,
    "StorageFull": 507,
    "StorageFailed": 503,
    "LogDamaged": 503,
    "Overloaded": 503,
    "NotReady": 503,
    "DeadlineExceeded": 504,
    "UploadTooSlow": 408,
    "EncoderStopped": 503,
    "EncodingFailed": 500,
    "NoEmbedding": 422,
    "BundleTampered": 503,
    "BundleUntrusted": 503,
    "SigningKeyError": 503,
    "BundleMismatch": 503,
    "BuildError": 500,
    "ConfigError": 500,
    "DatasetError": 500,
    "TooManyBadImages": 500,
    "SourceUnavailable": 500,
    "OutputError": 500,
    "RunInUse": 500,
    "StepNotReady": 500,
    "RequirementNotMet": 500,
    "UsageError": 500,
    "TrainingDiverged": 500,
    "WeightsError": 500,
    "EncoderSourceError": 500,
    "ParityError": 500,
    "CalibrationError": 500,
    "CertificateError": 500,
    "TransferError": 500,
    "InternalError": 500,
}


def drawn_tree(text: str) -> dict[str, str]:
    """Name → parent, read off the lines of a drawn tree."""
    parents, path = {}, list[str]()
    for line in text.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)", line)
        if found is None or (path == [] and found[2] != "VouchError"):
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        parents[found[2]] = path[depth - 1] if depth else "Exception"
    return parents


class TestTheFamily:
    def test_it_is_drawn_as_it_is(self) -> None:
        assert drawn_tree(errors.__doc__ or "") == PARENTS

    def test_all_of_the_family_live_in_one_room(self) -> None:
        names, elsewhere = {error.__name__ for error in FAMILY}, []
        for package in ("model_store", "index_builder", "service"):
            for path in (ROOT / package).rglob("*.py"):
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if (
                        isinstance(node, ast.ClassDef)
                        and path.parent != Path(errors.__file__).parent
                    ):
                        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                        elsewhere += [node.name] if bases & names else []
        assert elsewhere == []

    def test_the_status_of_each_is_known(self) -> None:
        assert {error.__name__: status_of(error) for error in FAMILY} == STATUSES

    @pytest.mark.parametrize("error", FAMILY, ids=lambda error: error.__name__)
    def test_each_makes_a_problem_document(self, error: type[VouchError]) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/here",
            "headers": [],
            "server": ("host", 80),
            "state": {"request_id": "0123"},
        }
        response = problem_response(Request(scope), error("What was received, and what to do."))
        assert response.headers["content-type"] == "application/problem+json"
        problem = json.loads(bytes(response.body))
        assert response.status_code == problem["status"] == STATUSES[error.__name__]
        words = re.findall("[A-Z][a-z]+", error.__name__)
        assert problem["code"] == "_".join(words).lower()
        assert problem["type"] == "urn:vouch:problem:" + "-".join(words).lower()
        assert problem["title"] == error.__dict__["__doc__"].splitlines()[0].rstrip(".") != ""
        assert problem["detail"] == "What was received, and what to do."
        assert problem["instance"] == "/here"
        assert problem["request_id"] == "0123"
        assert "errors" not in problem


def assert_problem(response: httpx2.Response, status: int, code: str, said: str) -> dict[str, Any]:
    """It is a problem document that keeps RFC 9457 and names its request."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:vouch:problem:{code.replace('_', '-')}"
    assert problem["title"]
    assert problem["instance"] == response.request.url.path
    assert problem["request_id"] == response.headers["x-request-id"] != ""
    assert re.search(said, problem["detail"]), problem["detail"]
    assert "<class" not in response.text
    return problem


def upload(image: bytes, **options: Any) -> Ask:
    return lambda client: search(client, image, **options)


def get(path: str) -> Ask:
    return lambda client: client.get(path)


SEARCH = "/v1/galleries/digits/search"


def json_search(content: bytes) -> Ask:
    headers = {"Content-Type": "application/json"}
    return lambda client: client.post(f"{SEARCH}/json", content=content, headers=headers)


CASES: dict[str, tuple[Ask, int, str, str]] = {
    "no bytes": (upload(b""), 400, "empty_image", "0 bytes.*Use"),
    "text": (
        upload(b"not an image, just text"),
        415,
        "unsupported_image",
        "it is plain text. Accepted: JPEG, PNG, WEBP, GIF, BMP, TIFF",
    ),
    "a format that is not accepted": (
        upload(picture("ICO", 16, 16)),
        415,
        "unsupported_image",
        "Accepted: JPEG",
    ),
    "half a JPEG": (upload(truncated("JPEG")), 422, "corrupt_image", "JPEG.*damaged or truncated"),
    "half a PNG": (upload(truncated("PNG")), 422, "corrupt_image", "PNG.*damaged or truncated"),
    "an image of too many bytes": (
        upload(b"\xff" * (MAX_BYTES + 1)),
        413,
        "image_too_large",
        "50,001 bytes; at most 50,000",
    ),
    "a declared body of too many bytes": (
        upload(b"\xff" * (MAX_BYTES + FORM_ALLOWANCE)),
        413,
        "image_too_large",
        r"115,\d\d\d bytes or more.*at most 50,000",
    ),
    "a streamed body of too many bytes": (
        lambda client: search_by_stream(client, MAX_BYTES + FORM_ALLOWANCE),
        413,
        "image_too_large",
        r"11\d,\d\d\d bytes or more.*at most 50,000",
    ),
    "too many pixels": (
        upload(picture("JPEG", 101, 100)),
        413,
        "image_too_large",
        "101 × 100 = 10,100 pixels; at most 10,000",
    ),
    "a decompression bomb": (
        upload(boasting_png(60_000, 60_000)),
        413,
        "image_too_large",
        "at most 10,000|more than 10,000",
    ),
    "no image": (
        lambda client: client.post(SEARCH, files={"limit": (None, "3")}),
        422,
        "invalid_request",
        "/body/image: Field required",
    ),
    "nothing at all": (
        lambda client: client.post(SEARCH),
        415,
        "unsupported_media_type",
        "declared as nothing; wanted: multipart/form-data",
    ),
    "a form that can hold no file": (
        lambda client: client.post(SEARCH, data={"image": "cat.jpg"}),
        415,
        "unsupported_media_type",
        "application/x-www-form-urlencoded; wanted: multipart/form-data",
    ),
    "a form without its boundary": (
        lambda client: client.post(SEARCH, headers={"Content-Type": "multipart/form-data"}),
        400,
        "invalid_form",
        "cannot be read: Missing boundary",
    ),
    "JSON in place of a form": (
        lambda client: client.post(SEARCH, json={}),
        415,
        "unsupported_media_type",
        "application/json; wanted: multipart/form-data",
    ),
    "text in place of an image": (
        lambda client: client.post(f"{SEARCH}/raw", headers={"Content-Type": "text/plain"}),
        415,
        "unsupported_media_type",
        r"text/plain; wanted: application/octet-stream or image/\*",
    ),
    "a form in place of JSON": (
        lambda client: client.post(f"{SEARCH}/json", data={"image_base64": ""}),
        415,
        "unsupported_media_type",
        "application/x-www-form-urlencoded; wanted: application/json",
    ),
    "half a JSON document": (
        lambda client: client.post(
            f"{SEARCH}/json", content=b"{", headers={"Content-Type": "application/json"}
        ),
        422,
        "invalid_request",
        r"not JSON: Expecting property name .*: line 1 column 2 \(char 1\)",
    ),
    "JSON that is no object": (
        lambda client: client.post(f"{SEARCH}/json", json=["image_base64"]),
        422,
        "invalid_request",
        "/body: .*dictionary",
    ),
    "half a character in JSON": (
        lambda client: client.post(
            f"{SEARCH}/json",
            content=b'{"image_base64": "\\ud800"}',
            headers={"Content-Type": "application/json"},
        ),
        422,
        "invalid_request",
        "/body/image_base64: ",
    ),
    "JSON deeper than anyone needs": (
        lambda client: client.post(
            f"{SEARCH}/json", content=b"[" * 60_000, headers={"Content-Type": "application/json"}
        ),
        422,
        "invalid_request",
        "more than 16,384 parts",
    ),
    "JSON nested deeper than Python reads": (  # from Python 3.13, only more levels than are allowed
        json_search(b'{"a":' * 2_000 + b"1" + b"}" * 2_000),
        422,
        "invalid_request",
        "The document is nested too deeply|/body/a: is not a field here",
    ),
    "an integer longer than Python reads": (
        json_search(b'{"limit": ' + b"9" * 5_000 + b"}"),
        422,
        "invalid_request",
        "an integer of more than 4,300 digits",
    ),
    "JSON that is no text": (
        json_search(b'{"a": "\xff"}'),
        422,
        "invalid_request",
        "not text in UTF-8",
    ),
    "bytes that are no text in an address": (
        get("/v1/galleries/%ff%00"),
        400,
        "invalid_head",
        "not valid UTF-8",
    ),
    "half a percent sign": (get("/v1/galleries/%zz"), 400, "invalid_head", "%zz"),
    "text in the place of a file": (
        lambda client: client.post(SEARCH, files={"image": (None, "cat.jpg")}),
        422,
        "invalid_request",
        "/body/image: .*file",
    ),
    "a body that is not multipart": (
        lambda client: client.post(
            SEARCH,
            content=b"garbage",
            headers={"Content-Type": "multipart/form-data; boundary=edge"},
        ),
        400,
        "invalid_form",
        "cannot be read",
    ),
    "a filter that is none": (
        upload(b"", filter='{"label": {"like": "x"}}'),
        422,
        "invalid_filter",
        "the comparison 'like'; wanted eq",
    ),
    "limit too small": (upload(b"", limit=0), 422, "invalid_request", "/body/limit: .*1"),
    "limit too large": (upload(b"", limit=101), 422, "invalid_request", "/body/limit: .*100"),
    "limit no number": (upload(b"", limit="ten"), 422, "invalid_request", "/body/limit: .*integer"),
    "alpha zero": (upload(b"", alpha=0), 422, "invalid_request", "/body/alpha: .*greater than 0"),
    "alpha one": (upload(b"", alpha=1), 422, "invalid_request", "/body/alpha: .*less than 1"),
    "alpha not a number": (upload(b"", alpha="nan"), 422, "invalid_request", "/body/alpha: "),
    "unknown gallery": (
        get("/v1/galleries/none"),
        404,
        "gallery_not_found",
        "no gallery 'none'.*lists the galleries",
    ),
    "search in an unknown gallery": (
        lambda client: search(client, picture("PNG"), "none"),
        404,
        "gallery_not_found",
        "no gallery 'none'.*lists the galleries",
    ),
    "unknown item": (get("/v1/galleries/digits/items/none"), 404, "item_not_found", "'none'"),
    "thumbnail of an unknown item": (
        get("/v1/galleries/digits/items/none/thumbnail"),
        404,
        "item_not_found",
        "'none'",
    ),
    "unknown sample": (get("/v1/galleries/digits/samples/99"), 404, "sample_not_found", "'99'"),
    "unknown path": (get("/v2/galleries"), 404, "path_not_found", "/v2/galleries"),
    "unknown file of the page": (get("/page/none.js"), 404, "path_not_found", "/page/none.js"),
    "wrong method": (
        lambda client: client.put("/livez"),
        405,
        "method_not_allowed",
        "PUT.*/livez.*GET",
    ),
}


@pytest.fixture
def small(start: StartClient) -> TestClient:
    """A service with bounds that a test can exceed."""
    return start(max_image_bytes=MAX_BYTES, max_image_pixels=MAX_PIXELS)


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_is_said(small: TestClient, name: str) -> None:
    ask, status, code, said = CASES[name]
    assert_problem(ask(small), status, code, said)


def test_every_wrong_option_is_named(small: TestClient, digit: bytes) -> None:
    problem = assert_problem(
        search(small, digit, limit=500, alpha=2), 422, "invalid_request", "limit.*alpha"
    )
    assert [error["pointer"] for error in problem["errors"]] == ["/body/limit", "/body/alpha"]
    assert all(error["detail"] for error in problem["errors"])


def test_a_wrong_method_names_the_right_one(client: TestClient) -> None:
    response = client.get(SEARCH)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_accepted_formats_are_accepted(small: TestClient, form: str) -> None:
    answer = search(small, picture(form)).json()
    assert answer["query"]["image"] == {"format": form, "width": 24, "height": 17, "warnings": []}


def test_the_bounds_themselves_are_accepted(small: TestClient) -> None:
    assert search(small, picture("JPEG", 100, 100)).status_code == 200
    image = picture("PNG")
    assert search(small, image + b"\0" * (MAX_BYTES - len(image))).status_code == 200


def test_an_error_leaves_the_service_as_it_was(small: TestClient, digit: bytes) -> None:
    before = search(small, digit).json()
    for ask, *_ in CASES.values():
        ask(small)
    after = search(small, digit).json()
    assert after["results"] == before["results"]


class TestAMistakeOfOurs:
    @pytest.fixture
    def broken(self, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(item_id: str) -> None:
            raise RuntimeError(f"secret of /srv/store while reading {item_id}")

        monkeypatch.setattr(bundle.retriever.gallery, "item", fail)

    def test_the_client_hears_nothing_of_the_inside(self, client: TestClient, broken: None) -> None:
        response = client.get("/v1/galleries/digits/items/any")
        assert_problem(response, 500, "internal_error", "log")
        assert "secret" not in response.text
        assert "RuntimeError" not in response.text

    def test_the_operator_finds_it_under_the_request_id(
        self, client: TestClient, broken: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR, "service.requests"):
            response = client.get("/v1/galleries/digits/items/any")
        assert response.headers["x-request-id"] in response.json()["detail"]
        [record] = [record for record in caplog.records if record.exc_info]
        assert record.__dict__["fields"]["request_id"] == response.headers["x-request-id"]
        assert "secret of /srv/store" in (record.exc_text or "")

    def test_an_encoder_that_fails_is_service_unavailable(
        self, client: TestClient, bundle: Bundle, digit: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(images: object, at_once: object) -> None:
            raise EncoderError("The encoder cannot be run. Restart the service.")

        monkeypatch.setattr(bundle.retriever.encoder, "encode", fail)
        assert_problem(search(client, digit), 503, "encoder_error", "Restart the service")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/galleries", "GET, HEAD, POST"),
        ("/v1/galleries/digits", "DELETE, GET, HEAD, PATCH"),
        ("/v1/galleries/digits/items", "GET, HEAD, POST"),
        ("/v1/galleries/digits/items/a", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/v1/galleries/digits/items/similar", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/v1/galleries/digits/items/a/similar", "GET, HEAD"),
        ("/v1/galleries/digits/items/a/b/thumbnail", "GET, HEAD"),
        ("/v1/galleries/digits/review/import", "POST"),
        ("/v1/galleries/digits/review/summary", "GET, HEAD"),
        ("/v1/galleries/digits/shadow", "DELETE, GET, HEAD, PUT"),
        ("/livez", "GET, HEAD"),
    ],
)
def test_all_methods_of_a_path_are_named(client: TestClient, path: str, allowed: str) -> None:
    refused = client.request("TRACE", path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    assert refused.json()["detail"].endswith(f"use {allowed}.")


def test_an_error_that_is_raised_again_and_again_loses_its_tracebacks() -> None:
    kept, other = VouchError("the database does not answer"), OSError("refused")
    for raised, earlier in ((kept, other), (other, kept)):
        try:
            try:
                raise earlier
            except (VouchError, OSError):
                raise raised from earlier
        except (VouchError, OSError):
            pass
    assert kept.__cause__ is other
    assert other.__cause__ is kept
    forget_frames(kept)
    assert kept.__traceback__ is None
    assert other.__traceback__ is None
