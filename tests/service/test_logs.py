"""Log lines: JSON, with the request they concern, and nothing that was sent."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from model_store.encoder.contract import Embeddings
from model_store.errors import EncoderStopped, GalleryUnavailable, UnsupportedImage, VouchError
from service.encoding.batching import MicroBatcher
from service.http.middleware import RequestContext
from service.observability.logs import (
    LONGEST_PATH,
    LONGEST_REASON,
    JsonFormatter,
    Redaction,
    RequestRecord,
    SearchRecord,
    log_as_json,
    request_record,
)
from service.observability.metrics import Telemetry
from tests.end_to_end.questions import assess, picture, search, truncated
from tests.support.fakes import FakeEncoder

SECRET = "sesame-4711-open"

Lines = Callable[[], list[dict[str, Any]]]


@contextmanager
def written() -> Iterator[io.StringIO]:
    """All that is logged meanwhile, at the level of production, as text."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


@pytest.fixture
def text() -> Iterator[io.StringIO]:
    with written() as text:
        yield text


@pytest.fixture
def lines(text: io.StringIO) -> Lines:
    """The lines of the service so far (its test client logs too)."""

    def parsed() -> list[dict[str, Any]]:
        all_lines = [json.loads(line) for line in text.getvalue().splitlines()]
        return [line for line in all_lines if line["logger"].startswith("service")]

    return parsed


class TestTheLineOfARequest:
    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
    def test_successful_probe_has_none(self, client: TestClient, lines: Lines, path: str) -> None:
        assert client.get(path).status_code == 200
        assert [line for line in lines() if line["message"] == "request"] == []
        assert client.post(path).status_code == 405
        (line,) = (line for line in lines() if line["message"] == "request")
        assert (line["path"], line["status"]) == (path, 405)

    def test_a_search_has_what_was_answered(
        self, client: TestClient, lines: Lines, digit: bytes
    ) -> None:
        answers = [search(client, digit) for _ in range(2)]
        found = [line for line in lines() if line["message"] == "request"]
        for line, answer, cache in zip(found, answers, ("miss", "hit"), strict=True):
            assert line.pop("time").endswith("Z")
            assert line.pop("ms") >= 0
            assert line == {
                "level": "info",
                "logger": "service.requests",
                "message": "request",
                "request_id": answer.headers["x-request-id"],
                "method": "POST",
                "path": "/v1/galleries/digits/search",
                "status": 200,
                "gallery": "digits",
                "verdict": answer.json()["verdict"],
                "cache": cache,
            }

    def test_a_refusal_has_its_code(self, client: TestClient, lines: Lines) -> None:
        response = search(client, picture("PNG"), "none")
        [line] = lines()
        assert line["request_id"] == response.headers["x-request-id"]
        assert (line["status"], line["code"]) == (404, "gallery_not_found")
        assert "verdict" not in line

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (GalleryUnavailable("It does not answer."), "ConnectionError: 10.0.0.7 is gone"),
            (UnsupportedImage("It is none."), None),  # the client's own affair
        ],
    )
    def test_an_error_of_the_service_has_the_reason_that_its_client_is_not_told(
        self,
        error: VouchError,
        reason: str | None,
        client: TestClient,
        lines: Lines,
        digit: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def broken(*_: object) -> None:
            raise error from ConnectionError("10.0.0.7 is gone")

        monkeypatch.setattr("service.serving.lease.Lease.search", broken)
        answer = search(client, digit)
        assert "10.0.0.7" not in answer.text
        [line] = lines()
        assert (line["status"], line.get("reason")) == (answer.status_code, reason)

    def test_a_reason_is_not_believed_to_be_short(self) -> None:
        record = RequestRecord("id", "POST", "/", reason="x" * 5000)
        assert record.fields()["reason"] == "x" * LONGEST_REASON

    def test_a_batch_has_all_its_verdicts(
        self, client: TestClient, lines: Lines, digit: bytes, stranger: bytes
    ) -> None:
        images = (digit, stranger, b"text", digit)
        files = [("images", ("query", image)) for image in images]
        items = client.post("/v1/galleries/digits/search/batch", files=files).json()["items"]
        verdicts = [item["answer"]["verdict"] for item in items if item["status"] == 200]
        line = lines()[-1]
        assert sum(line["verdicts"].values()) == len(verdicts) == 3
        assert line["verdicts"] == {verdict: verdicts.count(verdict) for verdict in set(verdicts)}
        assert (line["status"], line.get("code")) == (200, None)

    def test_several_searches_are_counted(self) -> None:
        record = RequestRecord("id", "POST", "/")
        for verdict, cache in (("match", "hit"), ("match", "miss"), ("no_match", "miss")):
            record.searches.append(SearchRecord(verdict, cache, None, None, False, {}, 0))
        assert record.fields()["verdicts"] == {"match": 2, "no_match": 1}
        assert record.fields()["caches"] == {"hit": 1, "miss": 2}
        assert "verdict" not in record.fields()

    def test_a_path_is_not_believed_to_be_short(self, client: TestClient, lines: Lines) -> None:
        client.get("/" + "x" * 5000)
        assert len(lines()[-1]["path"]) == LONGEST_PATH


class TestWhomALineConcerns:
    def test_whatever_is_logged_for_a_request_has_its_id(self, lines: Lines) -> None:
        logger = logging.getLogger("service.test")

        async def logs_about(scope: Scope, receive: Receive, send: Send) -> None:
            logger.info("here")
            await asyncio.create_task(asyncio.to_thread(logger.info, "in a thread of a task"))
            await answer_nothing(send)

        serve(logs_about)
        serve(logs_about)
        logger.info("outside")
        *of_requests, outside = lines()
        assert "request_id" not in outside
        ids = [line["request_id"] for line in of_requests]
        assert ids == [ids[0]] * 3 + [ids[-1]] * 3
        assert ids[0] != ids[-1]

    def test_an_unforeseen_error_has_the_id_that_its_client_was_told(
        self, client: TestClient, lines: Lines, digit: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: object) -> None:
            raise ZeroDivisionError("by zero")

        monkeypatch.setattr("service.serving.lease.Lease.search", broken)
        told = search(client, digit).json()["request_id"]
        unhandled, request = lines()
        assert unhandled["request_id"] == request["request_id"] == told
        assert "ZeroDivisionError: by zero" in unhandled["exception"]
        assert request["code"] == "internal_error"

    @pytest.mark.anyio
    async def test_a_batch_concerns_no_request_not_even_that_which_started_its_engine(
        self, lines: Lines
    ) -> None:
        class Stops(FakeEncoder):
            stopping = True

            def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
                if self.stopping:
                    self.stopping = False
                    raise EncoderStopped("stopped")
                return super().encode(images)

        outer = request_record.set(RequestRecord("activation", "POST", "/"))
        batcher = MicroBatcher(Stops())
        with pytest.raises(EncoderStopped):
            await batcher.encode(np.zeros((5, 5, 3), np.uint8))
        request_record.reset(outer)
        await batcher.encode(np.zeros((5, 5, 3), np.uint8))
        await batcher.close()
        [stopped] = [line for line in lines() if line["message"] == "encoder stopped"]
        assert "request_id" not in stopped


class TestNothingThatWasSent:
    HEADERS: ClassVar = {
        "Authorization": f"Bearer {SECRET}",
        "X-Api-Key": SECRET,
        "Cookie": f"session={SECRET}",
        "Proxy-Authorization": SECRET,
    }

    def test_neither_secrets_nor_pixels_are_logged(
        self, client: TestClient, text: io.StringIO, digit: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # What the client logs of itself is its own affair.
        for name in ("httpx", "httpx2", "httpcore2"):
            monkeypatch.setattr(logging.getLogger(name), "disabled", True)
        client.headers |= self.HEADERS
        uploads = [digit, picture("JPEG", 90, 80), truncated(), picture("BMP")]
        for upload in uploads:
            search(client, upload)
            assess(client, upload)
            client.post("/v1/galleries/digits/search", content=upload)
            client.post(
                "/v1/galleries/digits/feedback",
                json={"query_id": base64.b64encode(upload).decode()},
            )
            client.post(f"/v1/galleries/digits/search?api_key={SECRET}", content=upload)

        async def broken(*_: object) -> None:
            raise RuntimeError("unforeseen")

        monkeypatch.setattr("service.serving.lease.Lease.search", broken)
        search(client, digit)
        said = text.getvalue()
        assert "unforeseen" in said
        assert said.count("\n") > 20
        assert SECRET not in said
        for upload in uploads:
            assert not holds_any_of(said, upload)

    def test_the_search_for_pixels_would_find_them(self, text: io.StringIO, digit: bytes) -> None:
        logger = logging.getLogger("service.test")
        for careless in (digit, base64.b64encode(digit).decode(), digit.hex()):
            text.truncate(0)
            logger.info("received %s", careless)
            assert holds_any_of(text.getvalue(), digit)

    def test_binary_fields_are_only_measured(self, lines: Lines) -> None:
        fields = {
            "upload": b"\x89PNG\r\n",
            "view": memoryview(b"abc"),
            "pixels": np.zeros((2, 3, 3), np.uint8),
            "path": PermissionError("as text"),
        }
        logging.getLogger("service.test").info("careless", extra={"fields": fields})
        [line] = lines()
        assert line["upload"] == "6 bytes"
        assert line["view"] == "3 bytes"
        assert line["pixels"] == "array of shape (2, 3, 3)"
        assert line["path"] == "as text"


class TestTheFormat:
    def test_text_and_fields_stand_side_by_side_on_one_line(self) -> None:
        record = logging.makeLogRecord(
            {
                "name": "service",
                "levelname": "WARNING",
                "created": 0.0,
                "msg": "two\nlines of %s",
                "args": ("text",),
                "fields": {"path": "/a\n{b}", "n": 3},
            }
        )
        text = JsonFormatter().format(record)
        assert "\n" not in text
        assert json.loads(text) == {
            "time": "1970-01-01T00:00:00Z",
            "level": "warning",
            "logger": "service",
            "message": "two\nlines of text",
            "path": "/a\n{b}",
            "n": 3,
        }

    def test_an_exception_goes_along(self, lines: Lines) -> None:
        logging.getLogger("service").error("failed", exc_info=ZeroDivisionError("by zero"))
        [line] = lines()
        assert "ZeroDivisionError: by zero" in line["exception"]

    def test_redaction_hides_secrets_however_they_are_written(self) -> None:
        redact = Redaction(['p"ä\\ss', 'longer: p"ä\\ss', "abc", "", "ends\n"])
        for text in (
            'p"ä\\ss',
            json.dumps('p"ä\\ss'),
            repr('p"ä\\ss'),
            "ends\n",
            json.dumps("ends\n"),
        ):
            assert redact(f"<{text.strip(chr(39))}>").strip('<>"') == "…"
        assert redact("abc vouch_0123_ffff") == "abc vouch_0123_…"  # too short to be one

    def test_a_traceback_that_ends_the_process_shows_no_secret(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.excepthook", sys.excepthook)
        monkeypatch.setattr("logging.basicConfig", lambda **_: None)
        log_as_json(secrets=["swordfish"])
        logging.captureWarnings(False)
        sys.excepthook(ValueError, ValueError("bad port: swordfish"), None)
        assert capsys.readouterr().err == "ValueError: bad port: …\n"

    def test_python_s_warnings_are_lines_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        root = logging.getLogger()
        before, level = root.handlers[:], root.level
        root.handlers = []
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            log_as_json()
            try:
                warnings.warn("look here", UserWarning, stacklevel=1)
            finally:
                logging.captureWarnings(False)
                root.handlers, root.level = before, level
        [line] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert line["logger"] == "py.warnings"
        assert "look here" in line["message"]


def serve(app: Callable[[Scope, Receive, Send], Any]) -> None:
    """One request to ``app`` inside the outermost layer."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: object) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(RequestContext(app, Telemetry(), 1000, 1000)(scope, receive, send))


async def answer_nothing(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def holds_any_of(said: str, upload: bytes) -> bool:
    """Whether a text holds 12 bytes of an upload in a row: raw, escaped, in hex, or in base64."""
    stretches = [upload[begin : begin + 12] for begin in range(len(upload) - 12)]
    said_bytes = said.encode("latin-1", "ignore")
    encoded = base64.b64encode(upload).decode()
    return (
        any(stretch in said_bytes or stretch.hex() in said for stretch in stretches[:200])
        or any(repr(stretch)[2:-1].replace("\\", "\\\\") in said for stretch in stretches[:200])
        or any(encoded[begin : begin + 16] in said for begin in range(0, len(encoded) - 16, 4))
    )
