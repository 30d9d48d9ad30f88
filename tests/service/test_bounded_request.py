"""Bodies that cost far more than their size: text in odd encodings, documents of brackets."""

from __future__ import annotations

import errno
import gc
import json
import threading
import time
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from tempfile import SpooledTemporaryFile
from typing import Any

import httpx2
import pytest
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from starlette.types import Message

from service.http.bodies import BoundedRequest
from service.http.limits import AT_ONCE_BYTES, MAX_JSON_PARTS
from tests.end_to_end.questions import search

StartClient = Callable[..., TestClient]

GALLERY = "/v1/galleries/digits"
FORMS = ("search", "search/batch", "assess", "embed", "items")


def field(charset: str, text: bytes) -> dict[str, Any]:
    """A form with one field, whose text is said to be in ``charset``."""
    body = b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n' + text + b"\r\n--x--\r\n"
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    return {"content": body, "headers": {"Content-Type": kind}}


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", '"unicode_escape"', "utf-16"])
@pytest.mark.parametrize("path", FORMS)
def test_a_form_in_another_encoding_is_refused_before_it_is_read(
    client: TestClient, path: str, charset: str
) -> None:
    started = time.process_time()  # however busy the machine is
    # In punycode 300 kB take 6 s, in which nobody else is answered.
    refused = client.post(f"{GALLERY}/{path}", **field(charset, b"a" * 300_000))
    assert refused.status_code == 415
    assert "UTF-8" in refused.json()["detail"]
    assert time.process_time() - started < 3


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf8"', "us-ascii"])
def test_a_form_may_say_that_it_is_in_utf_8(client: TestClient, charset: str) -> None:
    refused = client.post(f"{GALLERY}/search", **field(charset, "ä".encode()))
    assert refused.status_code == 422  # there is no image; the form was read


DISPOSITION = b"Content-Disposition: form-data"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (DISPOSITION + b'; name="filter"; name="alpha"', "a part has two names"),
        (DISPOSITION + b"; NAME=filter; x=y; name =alpha", "a part has two names"),
        (DISPOSITION + b'; name=a\\"; name=b; x=\\""', "a part has two names"),
        (
            DISPOSITION + b'; name="filter"\r\n' + DISPOSITION + b'; name="alpha"',
            "a part has a header twice",
        ),
        (
            DISPOSITION + b'; name="alpha"\r\nContent-Type: a/b\r\ncontent-type: text/plain',
            "a part has a header twice",
        ),
    ],
)
def test_a_part_has_one_name(client: TestClient, header: bytes, said: str) -> None:
    body = b"--x\r\n" + header + b"\r\n\r\n0.1\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    refused = client.post(f"{GALLERY}/search", content=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_form")
    assert f"The form cannot be read: {said}." in refused.json()["detail"]


@pytest.mark.parametrize(
    "file_name",
    [b'"a; name=b; name=\'c.png"', b"x.png; filename*=UTF-8''%C3%A4.png", b"\xe4; name*=a"],
)
def test_a_file_name_may_look_like_a_name(
    client: TestClient, digit: bytes, file_name: bytes
) -> None:
    header = DISPOSITION + b'; name="image"; filename=' + file_name
    body = b"--x\r\n" + header + b"\r\n\r\n" + digit + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert client.post(f"{GALLERY}/search", content=body, headers=headers).status_code == 200


BRACKETS = {
    "lists": b"[" + b"[]," * 3_000_000 + b"[]]",
    "objects": b'{"image_base64": ' + b'{"a":' * 9_000 + b"1" + b"}" * 9_001,
    "numbers": b"[" + b"1," * 3_000_000 + b"1]",
}


@pytest.mark.parametrize("document", BRACKETS)
@pytest.mark.parametrize("path", ["search/json", "feedback"])
def test_a_document_of_nothing_but_structure_is_given_up(
    client: TestClient, path: str, document: str
) -> None:
    body = BRACKETS[document]
    refused = client.post(
        f"{GALLERY}/{path}", content=body, headers={"Content-Type": "application/json"}
    )
    too_large = path == "feedback" and len(body) > 2**16
    assert refused.status_code == (413 if too_large else 422)
    assert too_large or f"{MAX_JSON_PARTS:,} parts" in refused.json()["detail"]


def test_what_the_options_need_is_no_such_document(client: TestClient, digit: bytes) -> None:
    wanted = {"label": {"in": [str(n) for n in range(150)]}}
    asked = {"image_base64": b64encode(digit).decode(), "filter": wanted, "limit": 3}
    response = client.post(f"{GALLERY}/search/json", json=asked)
    assert response.status_code == 200, response.text


def test_commas_of_a_text_are_no_parts_of_a_document(client: TestClient) -> None:
    text = ',[{:\\"' * 40_000
    refused = client.post(f"{GALLERY}/search/json", json={"image_base64": text})
    assert refused.json()["errors"][0]["pointer"] == "/body/image_base64"  # it was read
    unended = b'{"image_base64": "' + b'\\",[' * 200_000
    started = time.process_time()
    refused = client.post(
        f"{GALLERY}/search/json", content=unended, headers={"Content-Type": "application/json"}
    )
    assert refused.status_code == 422
    assert time.process_time() - started < 2  # each string is read once


def test_others_are_answered_while_a_large_document_is_read(
    client: TestClient, digit: bytes
) -> None:
    """A picture of 20 MB in base64, which is no picture."""
    body = json.dumps({"image_base64": b64encode(bytes(20 * 2**20)).decode()}).encode()
    answers: list[httpx2.Response] = []
    sending = threading.Thread(
        target=lambda: answers.append(
            client.post(
                f"{GALLERY}/search/json",
                content=body,
                headers={"Content-Type": "application/json"},
            )
        )
    )
    sending.start()
    waited = []
    while sending.is_alive():
        started = time.perf_counter()
        assert client.get("/livez").status_code == 200
        waited.append(time.perf_counter() - started)
    sending.join()
    assert answers[0].status_code == 415  # zeros are no picture
    assert max(waited) < 2


@pytest.mark.parametrize("path", FORMS)
def test_a_large_upload_is_written_to_no_disk(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    written = []

    def full(file: object) -> None:
        written.append(file)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpooledTemporaryFile, "rollover", full)
    files = dict.fromkeys(("image", "images"), ("a.png", b"x" * 2_000_000))
    response = client.post(f"{GALLERY}/{path}", files=files)
    assert response.status_code < 500, response.text
    assert not written  # FastAPI calls what a form's reading raises an error of the client


@pytest.mark.parametrize("sizes", [(), (1,), (0, 3_000_000, 70_000)])
@pytest.mark.anyio
async def test_files_of_a_form_are_as_they_were_sent(sizes: tuple[int, ...]) -> None:
    """However the network cuts the form, and through what might be a boundary."""
    files = [(b"\r\n--x" * n)[:n] for n in sizes]
    parts = [
        b'--xyz\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        + file
        + b"\r\n"
        for file in files
    ]
    form = b"".join([*parts, b"--xyz--\r\n"])
    cut = [form[at : at + 9_999] for at in range(0, len(form), 9_999)]
    coming = iter(
        {"type": "http.request", "body": piece, "more_body": piece is not cut[-1]} for piece in cut
    )

    async def receive() -> Message:
        return next(coming)

    headers = [(b"content-type", b"multipart/form-data; boundary=xyz")]
    scope = {"type": "http", "path": "/", "headers": headers}
    sent = await BoundedRequest(scope, receive).form()
    uploads = [file for file in sent.getlist("images") if isinstance(file, UploadFile)]
    assert [file.size for file in uploads] == list(sizes)
    assert [await file.read() for file in uploads] == files
    await sent.close()


def test_a_form_of_very_many_fields_is_given_up(client: TestClient, digit: bytes) -> None:
    refused = search(client, digit, **{f"field{n}": "x" for n in range(70)})
    assert refused.status_code == 400
    assert "Too many fields" in refused.json()["detail"]


FORM_TYPE = "multipart/form-data; boundary=x"


@pytest.mark.parametrize("media_type", ["application/json", "image/png", FORM_TYPE])
@pytest.mark.anyio
async def test_nothing_is_held_of_what_a_client_that_left_has_sent(media_type: str) -> None:
    """Whatever becomes of the error: its traceback is kept until garbage is collected."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    pieces = [head + bytes(50_000), *(bytes(n) for n in range(50_001, 50_004))]
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    coming = iter([*messages, {"type": "http.disconnect"}])
    scope = {"type": "http", "path": "/", "headers": [(b"content-type", media_type.encode())]}

    async def receive() -> Message:
        return next(coming)

    request = BoundedRequest(scope, receive)
    tracemalloc.start()
    try:
        with pytest.raises(ClientDisconnect) as kept:
            await (request.form() if media_type == FORM_TYPE else request.body())
        n_held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.tb is not None
    assert n_held < min(map(len, pieces))


LARGE = b"A" * 4 * AT_ONCE_BYTES
REFUSED = {
    "no JSON": ("search/json", "application/json", b'{"image_base64":"' + LARGE),
    "not understood": ("search/json", "application/json", b'{"a":1,"image":"' + LARGE + b'"}'),
    "repeated": ("search/json", "application/json", b'{"a":1,"a":"' + LARGE + b'"}'),
    "brackets": ("search/json", "application/json", b"[" * len(LARGE)),
    "no image": ("search/raw", "image/png", LARGE),
    "no form": ("search", FORM_TYPE, b"--x\r\n" + LARGE),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_request_needs_no_garbage_collection(client: TestClient, why: str) -> None:
    path, kind, body = REFUSED[why]
    gc.collect()
    gc.disable()
    try:
        refused = client.post(f"{GALLERY}/{path}", content=body, headers={"Content-Type": kind})
        assert refused.is_client_error
        assert not any(type(one) is BoundedRequest for one in gc.get_objects())
    finally:
        gc.enable()
