from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from model_store.bundles.bundle import Bundle
from model_store.encoder.contract import Embeddings
from model_store.encoder.runs import ProviderPart
from model_store.installation import installed_version
from service.http.middleware import ClientGone, RequestContext
from service.observability.metrics import Telemetry
from service.serving.lease import Lease
from service.settings import Settings
from tests.end_to_end.processes import TIMEOUT_S, command_of, wait_until
from tests.end_to_end.questions import picture, search

StartClient = Callable[..., TestClient]
Sample = tuple[str, frozenset[tuple[str, str]]]

SEARCH = "/v1/galleries/{gallery}/search"


def sample(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


def measured(client: TestClient, *, gauges: bool = False) -> dict[Sample, float]:
    """What has been counted, without the buckets and their birthdays; or what is as it is now."""
    text = client.get("/metrics").text
    return {
        sample(found.name, **found.labels): found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
        if (family.type == "gauge") is gauges and not found.name.endswith(("_bucket", "_created"))
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
            if value != before.get(name, 0)
            and not name[0].endswith("_sum")
            and not name[0].startswith("process_")
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
        sample("vouch_problems_total", code="unsupported_image"): 2.0,
        sample("vouch_problems_total", code="empty_image"): 1.0,
    }


def test_no_client_can_make_the_metrics_grow(client: TestClient, moved: Moved) -> None:
    for number in range(5):
        client.get(f"/admin-{number}.php")
        client.get(f"/v1/galleries/guess-{number}")
        client.request(f"GUESS{number}", "/livez")
    assert moved() == {
        sample("vouch_requests_total", method="GET", route="unmatched", status="404"): 5.0,
        sample("vouch_request_seconds_count", route="unmatched"): 5.0,
        sample(
            "vouch_requests_total", method="GET", route="/v1/galleries/{gallery}", status="404"
        ): 5.0,
        sample("vouch_request_seconds_count", route="/v1/galleries/{gallery}"): 5.0,
        sample("vouch_requests_total", method="other", route="/livez", status="405"): 5.0,
        sample("vouch_request_seconds_count", route="/livez"): 5.0,
        sample("vouch_problems_total", code="path_not_found"): 5.0,
        sample("vouch_problems_total", code="gallery_not_found"): 5.0,
        sample("vouch_problems_total", code="method_not_allowed"): 5.0,
    }


def test_nothing_of_one_request_becomes_a_label(
    client: TestClient, bundle: Bundle, digit: bytes
) -> None:
    answer = search(client, digit).json()
    item = answer["results"][0]["id"]
    client.get(f"/v1/galleries/digits/items/{item}")
    client.get("/nowhere/secret", headers={"X-Api-Key": "secret"})
    search(client, digit, "elsewhere")
    known = {
        "gallery": {"digits"},
        "bundle": {bundle.manifest.id},
        "encoder": {bundle.retriever.encoder.fingerprint[:12]},
        "provider": {"CPUExecutionProvider"},
        "state": {"process"},
        "method": {"GET", "POST"},
        "status": {"200", "404"},
        "code": {"path_not_found", "gallery_not_found", "overloaded", "deadline_exceeded"},
        "stage": {"cache", "decode", "encode", "search", "decide", "items", "total"},
        "outcome": {"miss", "activated", "refused"},
        "verdict": {answer["verdict"]},
        "version": {installed_version()},
        "route": {
            "unmatched",
            "/metrics",
            SEARCH,
            "/v1/galleries/{gallery}/items/{item_id:item}",
        },
    }
    client.get("/metrics")
    found: dict[str, set[str]] = {}
    for _, labels in [*measured(client), *measured(client, gauges=True)]:
        for label, value in labels:
            found.setdefault(label, set()).add(value)
    assert found == known


def test_what_is_refused_is_counted_by_its_reason(
    start: StartClient, digit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, begun = start(max_in_flight=1, deadline_s=2), threading.Event()

    async def never(*_: object) -> None:
        begun.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(Lease, "search", never)
    with ThreadPoolExecutor(1) as other:
        late = other.submit(search, client, digit)
        assert begun.wait(TIMEOUT_S)
        assert search(client, digit).status_code == 503
        assert late.result().status_code == 504
    counts = measured(client)
    assert counts[sample("vouch_problems_total", code="overloaded")] == 1
    assert counts[sample("vouch_problems_total", code="deadline_exceeded")] == 1


@pytest.mark.anyio
@pytest.mark.parametrize("how", [ClientGone, ClientDisconnect], ids=["waiting", "uploading"])
async def test_a_client_that_went_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture, how: type[Exception]
) -> None:
    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        raise how

    async def nothing_comes() -> Message:
        pytest.fail("read")

    async def nothing_leaves(message: Message) -> None:
        pytest.fail(f"sent {message}")

    telemetry = Telemetry()
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with caplog.at_level(logging.INFO, "service.requests"):
        await RequestContext(left, telemetry, 1000, 1000)(scope, nothing_comes, nothing_leaves)
    assert b'vouch_problems_total{code="client_gone"} 1.0' in telemetry.exposition()
    lines = [record for record in caplog.records if record.name == "service.requests"]
    [line] = [vars(record)["fields"] for record in lines]
    assert (line["status"], line["code"]) == (499, "client_gone")


def test_outliers_are_counted_by_gallery(client: TestClient, digit: bytes, stranger: bytes) -> None:
    flags = [search(client, image).json()["query"]["ood"]["flag"] for image in (digit, stranger)]
    assert flags == [False, True]
    assert measured(client)[sample("vouch_outliers_total", gallery="digits")] == 1


def test_identical_uploads_at_once_are_seen_to_join(client: TestClient) -> None:
    image = picture("PNG", 900, 700)
    with ThreadPoolExecutor(6) as many:
        caches = [
            answer.json()["cache"] for answer in many.map(partial(search, client), [image] * 6)
        ]
    joins = measured(client).get(sample("vouch_single_flight_joins_total", gallery="digits"), 0)
    encoded = measured(client)[sample("vouch_queue_seconds_count", gallery="digits")]
    canaries = 1
    assert caches.count("miss") == joins + encoded - canaries
    assert joins >= 1


def test_a_decoder_that_is_lost_is_counted(start: StartClient, digit: bytes) -> None:
    client = start(decoders=1)
    assert measured(client)[sample("vouch_decoders_lost_total")] == 0
    [decoder] = [
        child
        for child in psutil.Process().children()
        if "service.decoding.worker" in command_of(child)
    ]
    decoder.kill()
    assert search(client, digit).status_code == 200
    assert measured(client)[sample("vouch_decoders_lost_total")] == 1


def test_how_things_are_is_looked_up_when_asked(
    client: TestClient, bundle: Bundle, digit: bytes
) -> None:
    now = measured(client, gauges=True)
    encoder = bundle.retriever.encoder
    gallery = {"gallery": "digits"}
    assert now[sample("vouch_queue_length", **gallery)] == 0
    assert now[sample("vouch_calibration_stale", **gallery)] == 0
    assert now[sample("vouch_requests_in_flight")] == 0
    assert 0 < now[sample("vouch_canary_age_seconds", **gallery)] < 60
    assert now[sample("vouch_canary_period_seconds", **gallery)] == Settings().canary_period_s
    assert now[sample("vouch_bundle_info", **gallery, bundle=bundle.manifest.id)] == 1
    identity = {"encoder": encoder.fingerprint[:12], "provider": "CPUExecutionProvider"}
    assert now[sample("vouch_encoder_info", **gallery, **identity)] == 1
    assert now[sample("vouch_cache_info", state="process")] == 1
    assert now[sample("vouch_build_info", version=installed_version())] == 1


def test_images_that_wait_are_in_the_queue_s_length(
    start: StartClient, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(max_batch=1)
    taken, free, encode = threading.Event(), threading.Event(), bundle.retriever.encoder.encode

    def waiting(images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        taken.set()
        free.wait()
        return encode(images, at_once)

    monkeypatch.setattr(bundle.retriever.encoder, "encode", waiting)
    pictures = [picture("PNG", seed=seed) for seed in range(4)]

    def length() -> float:
        return measured(client, gauges=True)[sample("vouch_queue_length", gallery="digits")]

    with ThreadPoolExecutor(4) as many:
        # The encoder may take several images in one turn: the first has to be alone in its.
        answers = [many.submit(search, client, pictures[0])]
        taken.wait()
        answers += [many.submit(search, client, one) for one in pictures[1:]]
        try:
            wait_until(lambda: length() == 3)
        finally:
            free.set()
        assert [answer.result().status_code for answer in answers] == [200] * 4
    assert length() == 0


def test_the_share_of_each_provider_is_told_where_there_was_a_choice(
    start: StartClient, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = {
        "CUDAExecutionProvider": ProviderPart(3, 0.75, 1e-4),
        "CPUExecutionProvider": ProviderPart(1, 0.25, 1e-5),
    }
    monkeypatch.setattr(bundle.retriever.encoder, "placement", placement)
    client = start()
    now = measured(client, gauges=True)
    for provider, share in (("CUDAExecutionProvider", 0.75), ("CPUExecutionProvider", 0.25)):
        name = sample("vouch_encoder_provider_share", gallery="digits", provider=provider)
        assert now[name] == share
    [ready] = client.get("/readyz").json()["galleries"]
    assert ready["placement"]["CUDAExecutionProvider"] == {"nodes": 3, "share": 0.75}


def test_the_media_type_is_that_of_prometheus(client: TestClient) -> None:
    media_type = client.get("/metrics").headers["content-type"]
    assert media_type == "text/plain; version=0.0.4; charset=utf-8"


def test_two_applications_count_apart(start: StartClient, digit: bytes) -> None:
    busy, idle = start(), start()
    search(busy, digit)
    assert sample("vouch_cache_total", outcome="miss") in measured(busy)
    assert sample("vouch_cache_total", outcome="miss") not in measured(idle)


def test_counters_of_alerts_begin_with_the_gallery() -> None:
    """Prometheus sees no increase of a series that begins at 1."""
    telemetry = Telemetry()
    telemetry.gallery("shoes")
    text = telemetry.exposition().decode()
    for sample in (
        'vouch_bundle_activations_total{gallery="shoes",outcome="refused"} 0.0',
        'vouch_encoder_stops_total{gallery="shoes"} 0.0',
        'vouch_problems_total{code="overloaded"} 0.0',
        "vouch_decoders_lost_total 0.0",
    ):
        assert sample in text


def test_process_metrics_are_exposed() -> None:
    assert "process_resident_memory_bytes" in Telemetry().exposition().decode()
