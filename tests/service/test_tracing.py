"""Traces, as a collector receives them; and that nobody suffers where there is none."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from service.observability.logs import JsonFormatter, RequestRecord, SearchRecord
from service.observability.tracing import FLUSH_TIMEOUT_S, OtlpTracing, stage_times
from service.settings import Settings
from tests.end_to_end.collector import Collector, attributes
from tests.end_to_end.processes import free_port, wait_until
from tests.end_to_end.questions import search

StartClient = Callable[..., TestClient]

SEARCH = "POST /v1/galleries/{gallery}/search"
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

NOT_HUNG_S = 2.0
"""More than what waits for nobody takes."""


@pytest.fixture(autouse=True)
def _spans_are_sent_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture
def client(start: StartClient, collector: Collector) -> TestClient:
    return start(otlp_endpoint=collector.endpoint)


class TestATrace:
    def test_it_says_what_was_answered(
        self, client: TestClient, collector: Collector, digit: bytes
    ) -> None:
        answer = search(client, digit).json()
        root = collector.root(SEARCH)
        assert attributes(root) == {
            "http.request.method": "POST",
            "http.route": "/v1/galleries/{gallery}/search",
            "http.response.status_code": 200,
            "vouch.request_id": answer["request_id"],
            "vouch.gallery": "digits",
            "vouch.verdict": answer["verdict"],
            "vouch.cache": "miss",
            "vouch.uncertainty_percentile": answer["query"]["uncertainty"]["percentile"],
            "vouch.outlier_p_value": answer["query"]["ood"]["p_value"],
        }
        assert root.kind == root.SPAN_KIND_SERVER
        assert collector.paths == ["/v1/traces"] * len(collector.paths)
        assert collector.resource()["service.name"] == "vouch"

    def test_its_parts_are_the_stages_as_they_were_measured(
        self, client: TestClient, collector: Collector, digit: bytes
    ) -> None:
        ms = search(client, digit).json()["timing_ms"]
        root = collector.root(SEARCH)
        parts = collector.parts(root)
        assert [part.name for part in parts] == [
            *("cache", "decode", "encode", "search", "decide", "items")
        ]
        for part in parts:
            measured = (part.end_time_unix_nano - part.start_time_unix_nano) / 1e6
            assert measured == pytest.approx(ms[part.name], abs=1e-3)
            assert root.start_time_unix_nano <= part.start_time_unix_nano
            assert part.end_time_unix_nano <= root.end_time_unix_nano
            assert part.trace_id == root.trace_id
        for one, next_one in pairwise(parts):
            assert one.end_time_unix_nano <= next_one.start_time_unix_nano

    def test_a_hit_has_no_encoding(
        self, client: TestClient, collector: Collector, digit: bytes
    ) -> None:
        search(client, digit)
        first = collector.root(SEARCH)
        search(client, digit)
        wait_until(lambda: [span.name for span in collector.spans()].count(SEARCH) == 2)
        [second] = [
            span
            for span in collector.spans()
            if span.name == SEARCH and span.span_id != first.span_id
        ]
        assert attributes(second)["vouch.cache"] == "hit"
        names = [part.name for part in collector.parts(second)]
        assert names == ["cache", "search", "decide", "items"]

    def test_it_is_sent_with_the_headers_of_the_secrets_folder(
        self, start: StartClient, collector: Collector, tmp_path: Path
    ) -> None:
        (tmp_path / "otel_exporter_otlp_headers").write_text("x-api-key=hush%21,x-team=birds\n")
        client = start(otlp_endpoint=collector.endpoint, secrets_dir=tmp_path)
        client.get("/v1/galleries")
        collector.root("GET /v1/galleries")
        assert set(collector.keys) == {"hush!"}

    def test_a_batch_has_the_stages_of_each_search(
        self, client: TestClient, collector: Collector, digit: bytes, stranger: bytes
    ) -> None:
        files = [("images", ("query", image)) for image in (digit, stranger)]
        client.post("/v1/galleries/digits/search/batch", files=files)
        root = collector.root("POST /v1/galleries/{gallery}/search/batch")
        assert attributes(root)["vouch.searches"] == 2
        names = [part.name for part in collector.parts(root)]
        assert {names.count(stage) for stage in names} == {2}
        assert len(names) == 12

    def test_the_caller_s_is_continued(
        self, client: TestClient, collector: Collector, digit: bytes
    ) -> None:
        client.headers["traceparent"] = CALLER
        search(client, digit)
        root = collector.root(SEARCH)
        assert root.trace_id.hex() == CALLER.split("-")[1]
        assert root.parent_span_id.hex() == CALLER.split("-")[2]

    def test_a_caller_that_keeps_no_trace_gets_none(
        self, client: TestClient, collector: Collector
    ) -> None:
        client.get("/v1/galleries", headers={"traceparent": CALLER[:-2] + "00"})
        client.get("/v1/galleries/digits")
        collector.root("GET /v1/galleries/{gallery}")
        assert "GET /v1/galleries" not in {span.name for span in collector.spans()}

    @pytest.mark.parametrize(
        "nonsense", ["", "00", "x" * 9000, CALLER + "-more", "00-" + "0" * 32 + "-" + "0" * 16]
    )
    def test_nonsense_begins_a_new_one(
        self, client: TestClient, collector: Collector, nonsense: str
    ) -> None:
        response = client.get(
            "/v1/galleries", headers={"traceparent": nonsense, "tracestate": nonsense}
        )
        assert response.status_code == 200
        assert collector.root("GET /v1/galleries").parent_span_id == b""

    def test_a_refusal_has_its_code_and_no_parts(
        self, client: TestClient, collector: Collector
    ) -> None:
        search(client, b"text")
        root = collector.root(SEARCH)
        assert attributes(root)["error.type"] == "unsupported_image"
        assert attributes(root)["http.response.status_code"] == 415
        assert collector.parts(root) == []
        assert root.status.code == root.status.STATUS_CODE_UNSET  # it is not our error

    def test_an_error_of_ours_is_one(
        self,
        client: TestClient,
        collector: Collector,
        digit: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def broken(*_: object) -> None:
            raise RuntimeError("secret of the inside")

        monkeypatch.setattr("service.serving.lease.Lease.search", broken)
        search(client, digit)
        root = collector.root(SEARCH)
        assert root.status.code == root.status.STATUS_CODE_ERROR
        assert attributes(root)["error.type"] == "internal_error"
        assert not any(b"secret of the inside" in body for body in collector.bodies)

    def test_paths_are_told_as_routes_only(self, client: TestClient, collector: Collector) -> None:
        client.get("/secret-path")
        assert "http.route" not in attributes(collector.root("GET"))
        assert not any(b"secret-path" in body for body in collector.bodies)

    def test_watching_the_service_leaves_none(
        self, client: TestClient, collector: Collector
    ) -> None:
        for path in ("/livez", "/readyz", "/metrics", "/v1/galleries"):
            client.get(path)
        collector.root("GET /v1/galleries")
        assert len(collector.spans()) == 1

    def test_no_pixels_and_no_keys_leave(
        self, client: TestClient, collector: Collector, digit: bytes
    ) -> None:
        secret = "sesame-4711"
        client.headers |= {
            "Authorization": f"Bearer {secret}",
            "X-Api-Key": secret,
            "Cookie": f"session={secret}",
        }
        search(client, digit)
        client.get(f"/v1/galleries?api_key={secret}")
        collector.root("GET /v1/galleries")
        sent = b"".join(collector.bodies)
        assert secret.encode() not in sent
        for begin in range(0, len(digit) - 12, 4):
            assert digit[begin : begin + 12] not in sent
        assert base64.b64encode(digit)[:32] not in sent


def test_log_lines_of_a_request_name_its_trace(
    client: TestClient, collector: Collector, digit: bytes
) -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("service.requests")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        search(client, digit)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    line = json.loads(text.getvalue())
    assert line["trace_id"] == collector.root(SEARCH).trace_id.hex()


class TestWhereTheCollectorIsGone:
    @pytest.fixture(params=["nobody listens", "it never answers"])
    def endpoint(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[str]:
        # Whoever waited for an export, or for the SDK's own 30 s, is far beyond `NOT_HUNG_S`.
        monkeypatch.setattr("service.observability.tracing.EXPORT_TIMEOUT_S", 60.0)
        if request.param == "nobody listens":
            yield f"http://127.0.0.1:{free_port()}"
        else:
            with Collector(delay_s=60) as silent:
                yield silent.endpoint

    def test_requests_are_answered_and_the_end_is_not_kept_waiting(
        self, start: StartClient, endpoint: str, digit: bytes
    ) -> None:
        client = start(otlp_endpoint=endpoint)
        search(client, digit).raise_for_status()
        slowest = 0.0
        for _ in range(100):
            began = time.perf_counter()
            assert search(client, digit).status_code == 200
            slowest = max(slowest, time.perf_counter() - began)
        assert slowest < NOT_HUNG_S
        began = time.perf_counter()
        client.__exit__(None, None, None)
        assert time.perf_counter() - began < FLUSH_TIMEOUT_S + NOT_HUNG_S
        client.__enter__()  # the fixture ends it again

    @pytest.mark.slow
    @pytest.mark.anyio
    async def test_spans_that_wait_are_bounded(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
        tracing = OtlpTracing(endpoint)
        for _ in range(5_000):
            tracing.begin(RequestRecord("id", "GET", "/"), {})()
        began = time.perf_counter()
        await tracing.close()
        assert time.perf_counter() - began < FLUSH_TIMEOUT_S + NOT_HUNG_S


@pytest.mark.anyio
async def test_what_has_not_been_sent_is_sent_at_the_end(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    tracing = OtlpTracing(f"{collector.endpoint}/v1/traces/")  # as some write it
    tracing.begin(RequestRecord("id", "GET", "/somewhere"), {})()
    await asyncio.sleep(0.1)
    assert collector.bodies == []
    await tracing.close()
    assert [span.name for span in collector.spans()] == ["GET"]
    assert collector.paths == ["/v1/traces"]


class TestStageTimes:
    @staticmethod
    def times(ended_ns: int = 10_000_000_000, **seconds: float) -> dict[str, tuple[float, float]]:
        search = SearchRecord("match", "miss", None, None, False, seconds, ended_ns)
        return {stage: (begin / 1e9, end / 1e9) for stage, begin, end in stage_times(search)}

    def test_waiting_for_a_thread_lies_between_encoding_and_search(self) -> None:
        times = self.times(cache=1, decode=2, encode=1, search=1, decide=0.5, items=0.5, total=8)
        assert times == {
            "cache": (2, 3),
            "decode": (3, 5),
            "encode": (5, 6),
            "search": (8, 9),
            "decide": (9, 9.5),
            "items": (9.5, 10),
        }

    def test_an_encoding_that_was_joined_began_before(self) -> None:
        times = self.times(cache=1, decode=4, encode=2, search=1, total=4)
        assert times == {"cache": (6, 7), "decode": (3, 7), "encode": (7, 9), "search": (9, 10)}

    def test_stages_of_another_door_follow_one_another(self) -> None:
        assert self.times(search=1, decide=2) == {"search": (7, 8), "decide": (8, 10)}


NOTHING_IMPORTED = """
import sys
from service.app import create_app
from service.settings import Settings
create_app(Settings(decoders=0), [])
names = ("service.observability.tracing", "opentelemetry.sdk.trace", "opentelemetry.exporter")
found = [name for name in names
         if name in sys.modules]
sys.exit(f"imported: {found}" if found else 0)
"""


@pytest.mark.process
def test_by_default_nothing_of_it_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_IMPORTED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class TestTheSetting:
    def test_without_the_extra_the_start_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValidationError, match="needs OpenTelemetry"):
            Settings(otlp_endpoint="http://collector:4318")

    def test_it_is_an_address(self) -> None:
        with pytest.raises(ValidationError, match="http://"):
            Settings(otlp_endpoint="collector:4317")
