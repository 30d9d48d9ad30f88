"""Numbers for Prometheus and lines for a log collector."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.batching import BatchRecord

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_KEY = re.compile(r"(vouch_[0-9a-f]{1,12}_)[0-9a-zA-Z]+")
"""A secret has no business in a log, whichever part of a request it was put into by mistake."""


class Telemetry:
    """The service's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "vouch_requests_total",
            "HTTP requests.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "vouch_request_seconds",
            "Time from request to answer.",
            ["route"],
            registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )
        self.stage_seconds = Histogram(
            "vouch_stage_seconds",
            "Time within a search, by stage.",
            ["stage"],
            registry=self.registry,
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
        )
        self.verdicts = Counter(
            "vouch_verdicts_total", "Verdicts.", ["gallery", "verdict"], registry=self.registry
        )
        self.cache = Counter(
            "vouch_cache_total", "Look-ups in the cache.", ["outcome"], registry=self.registry
        )
        self.uncertainty_percentile = Histogram(
            "vouch_uncertainty_percentile",
            "Percentile of uncertainty; flat as long as queries are like the calibration's.",
            ["gallery"],
            registry=self.registry,
            buckets=(10, 25, 50, 75, 90, 95, 99, 100),
        )
        self.outlier_p_value = Histogram(
            "vouch_outlier_p_value",
            "Outlier p-value; flat as long as queries are like the calibration's.",
            ["gallery"],
            registry=self.registry,
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1),
        )

        self.in_flight = Gauge(
            "vouch_requests_in_flight",
            "Requests being worked on; at VOUCH_MAX_IN_FLIGHT more are refused.",
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "vouch_batch_size",
            "Images encoded together.",
            ["gallery"],
            registry=self.registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )
        self.queue_seconds = Histogram(
            "vouch_queue_seconds",
            "How long the first image of a batch waited for the encoder.",
            ["gallery"],
            registry=self.registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )
        self.encoder_stops = Counter(
            "vouch_encoder_stops_total",
            "Times the encoder stopped at work and was started again.",
            ["gallery"],
            registry=self.registry,
        )
        self.drift = Gauge(
            "vouch_drift_log_capital",
            "Evidence against queries being like the calibration's, in nats; begins anew at 4.6.",
            ["gallery"],
            registry=self.registry,
        )
        self.stale = Gauge(
            "vouch_calibration_stale",
            "1 where the calibration does not hold for what is served.",
            ["gallery"],
            registry=self.registry,
        )

    def batches(self, gallery: str) -> Callable[[BatchRecord], None]:
        """What records the batches of a gallery."""

        def observe(batch: BatchRecord) -> None:
            self.batch_size.labels(gallery).observe(batch.size)
            self.queue_seconds.labels(gallery).observe(batch.waited_s)
            if batch.stopped:
                self.encoder_stops.labels(gallery).inc()

        return observe

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what is passed as ``extra={"fields": …}`` stands beside the text."""

    def format(self, record: logging.LogRecord) -> str:
        """Format ``record``."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _KEY.sub(r"\1…", json.dumps(line, default=str))


def log_as_json(level: int = logging.INFO) -> None:
    """Send every log line of the process to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
