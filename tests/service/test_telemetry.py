from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest
from end_to_end.questions import picture, search
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from model_store.retriever import Bundle
from service.telemetry import JsonFormatter

StartClient = Callable[..., TestClient]
Sample = tuple[str, frozenset[tuple[str, str]]]

SEARCH = "/v1/galleries/{gallery}/search"


def sample(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


def measured(client: TestClient) -> dict[Sample, float]:
    """Every sample of the exposition, without the buckets and their birthdays."""
    text = client.get("/metrics").text
    return {
        sample(found.name, **found.labels): found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
        if not found.name.endswith(("_bucket", "_created"))
    }


@pytest.fixture
def moved(client: TestClient) -> Callable[[], dict[Sample, float]]:
    """What counts have changed, and by how much, since the test began or asked last."""
    before = measured(client)

    def difference() -> dict[Sample, float]:
        nonlocal before
        now = measured(client)
        changed = {
            name: value - before.get(name, 0)
            for name, value in now.items()
            if value != before.get(name, 0) and not name[0].endswith("_sum")
        }
        before = now
        metrics = {"route": "/metrics"}
        changed.pop(sample("vouch_requests_total", method="GET", status="200", **metrics))
        changed.pop(sample("vouch_request_seconds_count", **metrics))
        return changed

    return difference


Moved = Callable[[], dict[Sample, float]]


def counted_search(verdict: str, cache: str, stages: Iterator[str]) -> dict[Sample, float]:
    counts = {
        sample("vouch_requests_total", method="POST", route=SEARCH, status="200"): 1.0,
        sample("vouch_request_seconds_count", route=SEARCH): 1.0,
        sample("vouch_verdicts_total", gallery="digits", verdict=verdict): 1.0,
        sample("vouch_cache_total", outcome=cache): 1.0,
        sample("vouch_uncertainty_percentile_count", gallery="digits"): 1.0,
        sample("vouch_outlier_p_value_count", gallery="digits"): 1.0,
    }
    return counts | {sample("vouch_stage_seconds_count", stage=stage): 1.0 for stage in stages}


def test_a_search_is_counted_stage_by_stage(client: TestClient, moved: Moved, digit: bytes) -> None:
    later = ["cache", "search", "decide", "items", "total"]
    verdict = search(client, digit).json()["verdict"]
    batch = {
        sample("vouch_batch_size_count", gallery="digits"): 1.0,
        sample("vouch_queue_seconds_count", gallery="digits"): 1.0,
    }
    assert moved() == batch | counted_search(verdict, "miss", iter([*later, "decode", "encode"]))
    search(client, digit)
    assert moved() == counted_search(verdict, "hit", iter(later))


def test_histograms_hold_what_was_answered(client: TestClient, digit: bytes) -> None:
    query = search(client, digit).json()["query"]
    sums = measured(client)
    for name, value in (
        ("vouch_uncertainty_percentile_sum", query["uncertainty"]["percentile"]),
        ("vouch_outlier_p_value_sum", query["ood"]["p_value"]),
    ):
        assert sums[sample(name, gallery="digits")] == pytest.approx(value)


def test_without_calibration_no_number_is_made_up(
    start: StartClient, bare_bundle: Bundle, digit: bytes
) -> None:
    client = start(bare_bundle)
    search(client, digit)
    counts = measured(client)
    assert counts[sample("vouch_verdicts_total", gallery="digits", verdict="not_calibrated")] == 1
    assert not [name for name, _ in counts if "percentile" in name or "p_value" in name]


def test_errors_are_counted_by_status_and_not_as_verdicts(client: TestClient, moved: Moved) -> None:
    search(client, b"text")
    search(client, b"text")
    search(client, b"")
    assert moved() == {
        sample("vouch_requests_total", method="POST", route=SEARCH, status="415"): 2.0,
        sample("vouch_requests_total", method="POST", route=SEARCH, status="400"): 1.0,
        sample("vouch_request_seconds_count", route=SEARCH): 3.0,
    }


def test_no_client_can_make_the_metrics_grow(client: TestClient, moved: Moved) -> None:
    for number in range(5):
        client.get(f"/admin-{number}.php")
        client.get(f"/v1/galleries/guess-{number}")
    assert moved() == {
        sample("vouch_requests_total", method="GET", route="unmatched", status="404"): 5.0,
        sample("vouch_request_seconds_count", route="unmatched"): 5.0,
        sample(
            "vouch_requests_total", method="GET", route="/v1/galleries/{gallery}", status="404"
        ): 5.0,
        sample("vouch_request_seconds_count", route="/v1/galleries/{gallery}"): 5.0,
    }


def test_the_media_type_is_that_of_prometheus(client: TestClient) -> None:
    media_type = client.get("/metrics").headers["content-type"]
    assert media_type == "text/plain; version=0.0.4; charset=utf-8"


def test_two_applications_count_apart(start: StartClient, digit: bytes) -> None:
    busy, idle = start(), start()
    search(busy, digit)
    assert sample("vouch_cache_total", outcome="miss") in measured(busy)
    assert sample("vouch_cache_total", outcome="miss") not in measured(idle)


class TestLogLines:
    def test_a_request_leaves_one_line(
        self, client: TestClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "service.requests"):
            response = search(client, picture("PNG"), "none")
        [record] = [record for record in caplog.records if record.name == "service.requests"]
        line = json.loads(JsonFormatter().format(record))
        assert line["request_id"] == response.headers["x-request-id"]
        assert line["method"] == "POST"
        assert line["path"] == "/v1/galleries/none/search"
        assert line["status"] == 404
        assert line["ms"] >= 0
        assert (line["level"], line["logger"]) == ("info", "service.requests")

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

    def test_an_exception_goes_along(self, caplog: pytest.LogCaptureFixture) -> None:
        logger = logging.getLogger("service.requests")
        logger.error("unhandled", exc_info=ZeroDivisionError("by zero"))
        line = json.loads(JsonFormatter().format(caplog.records[-1]))
        assert line["message"] == "unhandled"
        assert "ZeroDivisionError: by zero" in line["exception"]
