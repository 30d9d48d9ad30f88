"""Counters and histograms for Prometheus; gauges are in `service.serving.metrics`.

A label has few possible values: route patterns, served galleries, HTTP methods, problem codes.
Clients cannot add values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPMethod
from pathlib import Path
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from model_store.answers import Said
from model_store.bundles.bundle import Bundle
from model_store.installation import installed_version
from model_store.messages import ChangeReason
from service.observability.logs import BatchRecord, RequestRecord, SearchRecord

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REQUEST_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
STAGE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
QUEUE_SECONDS = (0.001, *REQUEST_SECONDS)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
PERCENTILES = (10, 25, 50, 75, 90, 95, 99, 100)
P_VALUES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1)

METHODS = {method.value for method in HTTPMethod}

MetricT = TypeVar("MetricT", Counter, Histogram)


@lru_cache(maxsize=4096)
def _of(metric: MetricT, *labels: str) -> MetricT:
    """Return the child of a metric for these label values; children are cached.

    The cache saves time, because a search changes a dozen children.
    """
    return metric.labels(*labels)


CREATED = "(created)"
"""One label for all galleries created over HTTP: there may be thousands, and their names are
private."""


def counted_as(bundle: Bundle) -> str:
    """Return the value of the label `gallery` in the metrics of a bundle."""
    return bundle.name if bundle.entry is None else CREATED


_FLAGS = {True: "yes", False: "no", None: "unknown"}


class Telemetry:
    """The metrics of the service, in a separate registry.

    Parameters
    ----------
    shared : directory of prometheus_client's multiprocess mode; None for a single process.

    Attributes
    ----------
    exposed : registry for Prometheus, with the metrics of all processes.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.registry = self.exposed = CollectorRegistry()
        if shared is not None:
            self.exposed = CollectorRegistry()
            MultiProcessCollector(self.exposed, str(shared))  # type: ignore[no-untyped-call]
        self._of_requests()
        self._of_queries()
        self._of_shadows()
        self._of_work()
        for code in ("overloaded", "deadline_exceeded"):  # as `gallery` does
            self.problems.labels(code)
        if shared is None:
            ProcessCollector(registry=self.registry)
        Gauge(
            "vouch_build_info",
            "1, for the running release.",
            ["version"],
            registry=self.registry,
            multiprocess_mode="livemax",
        ).labels(installed_version()).set(1)

    def request(self, record: RequestRecord) -> None:
        """Count a finished request."""
        method = record.method if record.method in METHODS else "other"
        _of(self.requests, method, record.route, str(record.status)).inc()
        _of(self.request_seconds, record.route).observe(record.seconds)
        if record.code is not None:
            _of(self.problems, record.code).inc()

    def search(self, gallery: str, search: SearchRecord) -> None:
        """Count an answered search."""
        _of(self.verdicts, gallery, search.verdict).inc()
        _of(self.cache, search.cache).inc()
        for stage, seconds in search.seconds.items():
            _of(self.stage_seconds, stage).observe(seconds)
        if search.uncertainty_percentile is not None:
            _of(self.uncertainty_percentile, gallery).observe(search.uncertainty_percentile)
        if search.outlier_p_value is not None:
            _of(self.outlier_p_value, gallery).observe(search.outlier_p_value)
        if search.is_outlier:
            _of(self.outliers, gallery).inc()

    def batches(self, gallery: str) -> Callable[[BatchRecord], None]:
        """Return a callback that records the batches of a gallery."""

        def observe(batch: BatchRecord) -> None:
            _of(self.batch_size, gallery).observe(batch.size)
            _of(self.queue_seconds, gallery).observe(batch.waited_s)
            if batch.stopped:
                _of(self.encoder_stops, gallery).inc()

        return observe

    def reviews(self, gallery: str) -> Callable[[str, int], None]:
        """Return a callback that counts the review cases of a gallery, by outcome."""

        def observe(outcome: str, n: int) -> None:
            if n:
                _of(self.review_cases, gallery, outcome).inc(n)

        return observe

    def shadow(
        self, gallery: str
    ) -> Callable[[str, tuple[Said, Said, ChangeReason | None] | None], None]:
        """Return a callback that counts the shadow queries of a gallery, by outcome."""

        def observe(
            outcome: str, both: tuple[Said, Said, ChangeReason | None] | None = None
        ) -> None:
            _of(self.shadow_queries, gallery, outcome).inc()
            if both is None:
                return
            old, new, reason = both
            _of(self.shadow_verdicts, gallery, old.verdict, new.verdict).inc()
            flags = (_FLAGS[said.outlier] for said in (old, new))
            _of(self.shadow_outliers, gallery, *flags).inc()
            if old.item_id == new.item_id:
                _of(self.shadow_same_first, gallery).inc()
            if reason is not None:
                _of(self.shadow_changes, gallery, reason).inc()

        return observe

    def gallery(self, gallery: str) -> None:
        """Create the counters of a gallery with the value 0.

        Otherwise a counter would start at 1, and Prometheus would not see the first event as an
        increase.
        """
        self.encoder_stops.labels(gallery)
        for outcome in ("activated", "refused"):
            self.activations.labels(gallery, outcome)

    def activation(self, gallery: str, outcome: str) -> None:
        """Count an attempt to activate a bundle."""
        self.activations.labels(gallery, outcome).inc()

    def written(self, gallery: str, n_put: int, n_deleted: int) -> None:
        """Count the written and the deleted items of a gallery."""
        self.items_written.labels(gallery, "put").inc(n_put)
        self.items_written.labels(gallery, "deleted").inc(n_deleted)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.exposed)

    def _of_requests(self) -> None:
        self.requests = self._counter(
            "vouch_requests_total", "HTTP requests.", "method", "route", "status"
        )
        self.request_seconds = self._histogram(
            "vouch_request_seconds", "Time from request to answer.", REQUEST_SECONDS, "route"
        )
        self.problems = self._counter(
            "vouch_problems_total",
            "Requests that ended with a problem, by code; client_gone: the client closed the "
            "connection.",
            "code",
        )
        self.in_flight = Gauge(
            "vouch_requests_in_flight",
            "Requests in progress; at VOUCH_MAX_IN_FLIGHT, new requests are refused.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def _of_queries(self) -> None:
        self.stage_seconds = self._histogram(
            "vouch_stage_seconds", "Time of each stage of a search.", STAGE_SECONDS, "stage"
        )
        self.verdicts = self._counter("vouch_verdicts_total", "Verdicts.", "gallery", "verdict")
        self.audits = self._counter(
            "vouch_audits_total", "`match` answers that were drawn at random for review.", "gallery"
        )
        self.review_cases = self._counter(
            "vouch_review_cases_total",
            "Review cases: kept, expired, displaced by the limits, or lost before storage.",
            "gallery",
            "outcome",
        )
        self.outliers = self._counter(
            "vouch_outliers_total", "Queries flagged as out of distribution.", "gallery"
        )
        self.cache = self._counter("vouch_cache_total", "Look-ups in the cache.", "outcome")
        self.single_flight_joins = self._counter(
            "vouch_single_flight_joins_total",
            "Queries that shared the encoding of the same image with another query.",
            "gallery",
        )
        self.uncertainty_percentile = self._histogram(
            "vouch_uncertainty_percentile",
            "Percentile of uncertainty; uniform while queries resemble the calibration queries.",
            PERCENTILES,
            "gallery",
        )
        self.outlier_p_value = self._histogram(
            "vouch_outlier_p_value",
            "Outlier p-value; uniform while queries resemble the calibration queries.",
            P_VALUES,
            "gallery",
        )

    def _of_shadows(self) -> None:
        self.shadow_queries = self._counter(
            "vouch_shadow_queries_total",
            "Queries drawn for a shadow: compared, failed, or dropped because of live load.",
            "gallery",
            "outcome",
        )
        self.shadow_verdicts = self._counter(
            "vouch_shadow_verdicts_total",
            "Queries by the verdicts of the served bundle and of the shadow bundle.",
            *("gallery", "old", "new"),
        )
        self.shadow_outliers = self._counter(
            "vouch_shadow_outliers_total",
            "Queries by the outlier flags of the served and the shadow bundle: yes, no, unknown.",
            *("gallery", "old", "new"),
        )
        self.shadow_same_first = self._counter(
            "vouch_shadow_same_first_total",
            "Shadow queries with the same first item as the served answer.",
            "gallery",
        )
        self.shadow_changes = self._counter(
            "vouch_shadow_changes_total",
            "Shadow queries whose answer differs from the served answer, by reason.",
            "gallery",
            "reason",
        )

    def _of_work(self) -> None:
        self.batch_size = self._histogram(
            "vouch_batch_size", "Images encoded together.", BATCH_SIZES, "gallery"
        )
        self.queue_seconds = self._histogram(
            "vouch_queue_seconds",
            "Waiting time of the first image of a batch.",
            QUEUE_SECONDS,
            "gallery",
        )
        self.encoder_stops = self._counter(
            "vouch_encoder_stops_total",
            "Restarts of the encoder after it stopped during work.",
            "gallery",
        )
        self.decoders_lost = self._counter(
            "vouch_decoders_lost_total",
            "Replaced decoder processes.",
        )
        self.activations = self._counter(
            "vouch_bundle_activations_total",
            "Attempts to activate a bundle, and automatic compactions, by outcome.",
            "gallery",
            "outcome",
        )

        self.items_written = self._counter(
            "vouch_items_written_total",
            "Items written to and deleted from served galleries.",
            "gallery",
            "change",
        )

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _histogram(
        self, name: str, help_text: str, buckets: Sequence[float], *labels: str
    ) -> Histogram:
        return Histogram(name, help_text, labels, registry=self.registry, buckets=buckets)
