"""Galleries of a service, without a network: what is sent, kept and raised."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import numpy as np
import pytest

import vouch_search as vouch
from service import schemas
from tests.end_to_end.questions import picture

Respond = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture(scope="module")
def answer(digits_bundle: Path) -> str:
    """The JSON answer to a search."""
    with vouch.open(digits_bundle) as gallery:
        return gallery.search(picture("PNG", 28, 28), k=2).model_dump_json()


def problem(status: int, code: str) -> httpx2.Response:
    record = schemas.Problem(
        type="about:blank", title=code, status=status, detail=code, instance="/", code=code,
        request_id="0",
    )  # fmt: skip
    return httpx2.Response(status, content=record.model_dump_json())


FIELDS: dict[str, Any] = {"name": "digits", "n_items": 864, "n_labels": 8}
DETAIL = schemas.GalleryDetail.model_construct(**FIELDS)


def remote(respond: Respond) -> vouch.RemoteGallery:
    client = vouch.Client("http://service", transport=httpx2.MockTransport(respond))
    return vouch.RemoteGallery(client, DETAIL)


def asynchronous(respond: Respond) -> vouch.AsyncGallery:
    client = vouch.AsyncClient("http://service", transport=httpx2.MockTransport(respond))
    return vouch.AsyncGallery(client, DETAIL)


@pytest.mark.parametrize("client", [vouch.Client, vouch.AsyncClient])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:9341", r"url: must begin with http:// or https://"),
        ("ftp://service", r"url: must begin with http:// or https://"),
        ("", r"url: must begin with http:// or https://"),
        (None, r"url: received NoneType, wanted text"),
    ],
)
def test_wrong_url_is_named_by_the_constructor(client: Any, url: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        client(url)


@pytest.mark.parametrize("client", [vouch.Client, vouch.AsyncClient])
def test_scheme_of_a_url_may_be_in_upper_case(client: Any) -> None:
    client("HTTP://service")
    with pytest.raises(ValueError, match="A service is reached by"):
        vouch.open("HTTP://service")


class TestErrors:
    @pytest.mark.parametrize("gallery_of", [remote, asynchronous])
    def test_search_whose_connection_is_lost_is_sent_again(
        self, answer: str, gallery_of: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.client.contract.WAIT_WHEN_LOST_S", 0.0)
        seen: list[bytes] = []

        def respond(request: httpx2.Request) -> httpx2.Response:
            seen.append(request.read())
            if len(seen) == 1:
                raise httpx2.RemoteProtocolError("Server disconnected", request=request)
            return httpx2.Response(200, content=answer)

        found = gallery_of(respond).search(b"image")
        if gallery_of is asynchronous:
            asyncio.run(found)
        assert len(seen) == 2
        assert len({*seen}) == 1

    def test_asynchronous_search_raises_the_error_itself(self, answer: str) -> None:
        gallery = asynchronous(lambda _: httpx2.Response(200, content=answer))
        with pytest.raises(TypeError, match="int 3"):
            asyncio.run(gallery.search_many([b"image", 3], errors="raise"))  # type: ignore[list-item]

    @pytest.mark.parametrize(
        ("status", "code"),
        [(401, "unauthorized"), (403, "forbidden"), (404, "gallery_not_found")],
    )
    def test_refusal_of_all_searches_is_raised(self, status: int, code: str) -> None:
        def refuse(_: httpx2.Request) -> httpx2.Response:
            return problem(status, code)

        with pytest.raises(vouch.VouchProblem, match=code):
            remote(refuse).search_many([b"image"] * 3)
        with pytest.raises(vouch.VouchProblem, match=code):
            asyncio.run(asynchronous(refuse).search_many([b"image"] * 3))

    @pytest.mark.parametrize("kind", ["timeout", "500"])
    def test_failed_request_of_one_image_keeps_the_other_answers(
        self, answer: str, kind: str
    ) -> None:
        def fail_once(request: httpx2.Request) -> httpx2.Response:
            if b"second" not in request.read():
                return httpx2.Response(200, content=answer)
            if kind == "timeout":
                raise httpx2.ReadTimeout("timed out", request=request)
            return problem(500, "internal_error")

        images = [b"first", b"second", b"third"]
        for answers in (
            remote(fail_once).search_many(images),
            asyncio.run(asynchronous(fail_once).search_many(images)),
        ):
            assert [one.verdict is None for one in answers] == [False, True, False]
            assert isinstance(answers.failures[0].error, httpx2.ReadTimeout | vouch.VouchProblem)
        with pytest.raises((httpx2.ReadTimeout, vouch.VouchProblem)):
            remote(fail_once).search_many(images, errors="raise")


def test_file_name_that_is_not_utf_8_is_sent(answer: str, tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    file.write_bytes(b"image")
    sent: list[bytes] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.read())
        return httpx2.Response(200, content=answer)

    found = [remote(respond).search(file), asyncio.run(asynchronous(respond).search(file))]
    assert [one.query_name for one in found] == [str(tmp_path / "caf?.png")] * 2
    assert all(b'filename="caf?.png"' in body for body in sent)


def test_answer_of_a_closed_client_is_shown_without_pictures(answer: str) -> None:
    gallery = remote(lambda _: httpx2.Response(200, content=answer))
    found = gallery.search(b"image")
    gallery.close()
    assert "<figcaption>" in found._repr_html_()
    assert "<img" not in found._repr_html_()


class TestOptions:
    @staticmethod
    def bodies(answer: str, **options: Any) -> list[bytes]:
        """Return the bodies of all kinds of searches with the options."""
        sent: list[bytes] = []

        def respond(request: httpx2.Request) -> httpx2.Response:
            sent.append(request.read())
            return httpx2.Response(200, content=answer)

        gallery, other = remote(respond), asynchronous(respond)
        gallery.search(b"image", **options)
        gallery.search_text("a digit", **options)
        asyncio.run(other.search(b"image", **options))
        asyncio.run(other.search_text("a digit", **options))
        return sent

    def test_checked_values_are_sent(self, answer: str) -> None:
        options = {
            "k": np.int64(3),
            "alpha": np.float32(0.5),
            "filter": MappingProxyType({"year": np.int64(3)}),
        }
        for body in self.bodies(answer, **options):
            assert b"0.5" in body
            assert b'{"year": 3}' in body.replace(b"\\", b"")

    def test_wrong_values_are_not_sent(self, answer: str) -> None:
        with pytest.raises(ValueError, match="source: received the empty text"):
            self.bodies(answer, source="")
        with pytest.raises(TypeError, match=r"filter\.day: received date"):
            self.bodies(answer, filter={"day": date(2026, 1, 1)})
