"""Gauges of the galleries, computed when Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from model_store.decision import estimate_error
from service.encoding.cache import Cache
from service.serving.lease import Lease
from service.serving.registry import Galleries
from service.serving.shadow import Shadow

_GAUGES: tuple[tuple[str, str, list[str]], ...] = (
    ("vouch_queue_length", "Images that wait for the encoder.", ["gallery"]),
    (
        "vouch_drift_log_capital",
        "Evidence of drift in the queries of all callers, in nats; alarm at 5.7.",
        ["gallery"],
    ),
    (
        "vouch_drift_alarm",
        "1 while the drift alarm for all callers lasts; this alarm changes no answer.",
        ["gallery"],
    ),
    (
        "vouch_drift_alarmed_callers",
        "Callers whose own queries raised an alarm: their answers are not guaranteed.",
        ["gallery"],
    ),
    (
        "vouch_calibration_stale",
        "1 if the calibration does not hold for the served gallery or search.",
        ["gallery"],
    ),
    (
        "vouch_absent_share",
        "Share of queries without a match, if neither the request nor its key sets a share.",
        ["gallery"],
    ),
    (
        "vouch_absent_share_estimated",
        "Estimate of vouch_absent_share from served queries; no answer uses it.",
        ["gallery"],
    ),
    (
        "vouch_absent_share_lower",
        "Lower end of the 95 % interval of vouch_absent_share_estimated.",
        ["gallery"],
    ),
    (
        "vouch_absent_share_upper",
        "Upper end of the 95 % interval of vouch_absent_share_estimated.",
        ["gallery"],
    ),
    (
        "vouch_audited_matches",
        "Matches drawn at random for review that were reviewed.",
        ["gallery"],
    ),
    (
        "vouch_audited_errors",
        "Reviewed matches found wrong; doubtful matches are reviewed more often.",
        ["gallery"],
    ),
    ("vouch_error_rate", "Estimate of the error rate of all matches.", ["gallery"]),
    (
        "vouch_error_log_evidence",
        "Evidence that the error rate of matches exceeds its maximum, in nats; alarm at 4.6.",
        ["gallery"],
    ),
    ("vouch_error_alarm", "1 if vouch_error_log_evidence has ever reached the alarm.", ["gallery"]),
    (
        "vouch_review_queue",
        "Queries kept for review.",
        ["gallery", "reason", "state"],
    ),
    (
        "vouch_shadow_probability_change",
        "Mean difference of the first items' match probability: shadow minus served answer.",
        ["gallery"],
    ),
    (
        "vouch_shadow_info",
        "1, for the shadow bundle.",
        ["gallery", "bundle"],
    ),
    (
        "vouch_canary_age_seconds",
        "Seconds since a gallery last answered a canary query.",
        ["gallery"],
    ),
    (
        "vouch_canary_period_seconds",
        "Seconds between canary queries to a gallery (VOUCH_CANARY_PERIOD_S).",
        ["gallery"],
    ),
    ("vouch_gallery_items", "Number of items in the gallery.", ["gallery"]),
    (
        "vouch_pending_changes",
        "Items written since the bundle was built; every search scans them.",
        ["gallery"],
    ),
    ("vouch_bundle_info", "The served bundle (as a label); the value is 1.", ["gallery", "bundle"]),
    (
        "vouch_encoder_info",
        "The encoder and its execution provider (as labels); the value is 1.",
        ["gallery", "encoder", "provider"],
    ),
    (
        "vouch_encoder_provider_share",
        "Share of the encoder's nodes that each provider ran; only with several providers.",
        ["gallery", "provider"],
    ),
    (
        "vouch_created_galleries_open",
        "Open galleries that were created over HTTP; other gauges do not count these galleries.",
        [],
    ),
    ("vouch_processes", "Worker processes that answer.", []),
    ("vouch_cache_info", "The cache and its state (as a label); the value is 1.", ["state"]),
)
"""The name, help text and labels of each gauge."""


class GalleryMetrics(Collector):
    """Metrics of the open galleries, computed at each request for metrics.

    Closed galleries are not reported. Use the collector only on the event loop.
    """

    def __init__(
        self,
        galleries: Galleries,
        cache: Cache,
        canary_period_s: float,
        n_workers: Callable[[], int] = lambda: 1,
    ) -> None:
        self._galleries = galleries
        self._cache = cache
        self._canary_period_s = canary_period_s
        self._n_workers = n_workers

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the empty metric families."""
        yield from self._families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metric families with their current values."""
        families = self._families()
        now = time.monotonic()
        for engine in self._galleries.fixed():
            bundle, encoder = engine.bundle, engine.bundle.retriever.encoder
            lease = Lease(engine, bundle)
            name = bundle.name
            families["vouch_queue_length"].add_metric([name], engine.waiting)
            drift = engine.watches["image"].drift.report
            families["vouch_drift_log_capital"].add_metric([name], drift.log_capital)
            families["vouch_drift_alarm"].add_metric([name], drift.drifted)
            families["vouch_drift_alarmed_callers"].add_metric([name], len(drift.alarmed))
            families["vouch_calibration_stale"].add_metric([name], lease.stale is not None)
            absent = lease.absent_share
            if absent is not None:
                families["vouch_absent_share"].add_metric([name], absent.used)
                if absent.estimated is not None:
                    families["vouch_absent_share_estimated"].add_metric([name], absent.estimated)
                if absent.interval is not None:
                    families["vouch_absent_share_lower"].add_metric([name], absent.interval[0])
                    families["vouch_absent_share_upper"].add_metric([name], absent.interval[1])
            audit = engine.watches["image"].audit
            if audit.watches:
                families["vouch_audited_matches"].add_metric([name], audit.test.n)
                families["vouch_audited_errors"].add_metric([name], audit.test.n_wrong)
                if (rate := estimate_error(audit.reviews).rate) is not None:
                    families["vouch_error_rate"].add_metric([name], rate)
                families["vouch_error_log_evidence"].add_metric([name], audit.test.log_evidence)
                families["vouch_error_alarm"].add_metric([name], audit.test.alarmed)
            for (reason, state), n in engine.reviews.counts.items():
                families["vouch_review_queue"].add_metric([name, reason, state], n)
            _add_shadow(families, name, engine.shadow)
            families["vouch_canary_age_seconds"].add_metric([name], now - engine.canary_at)
            families["vouch_canary_period_seconds"].add_metric([name], self._canary_period_s)
            families["vouch_gallery_items"].add_metric([name], bundle.retriever.gallery.n_items)
            families["vouch_pending_changes"].add_metric([name], bundle.n_pending)
            families["vouch_bundle_info"].add_metric([name, bundle.manifest.id], 1)
            identity = [name, encoder.fingerprint[:12], encoder.provider]
            families["vouch_encoder_info"].add_metric(identity, 1)
            for provider, ran in (encoder.placement or {}).items():
                families["vouch_encoder_provider_share"].add_metric([name, provider], ran.share)
        n_open = len(self._galleries.engines()) - len(self._galleries.fixed())
        families["vouch_created_galleries_open"].add_metric([], n_open)
        families["vouch_processes"].add_metric([], self._n_workers())
        families["vouch_cache_info"].add_metric([self._cache.state], 1)
        yield from families.values()

    @staticmethod
    def _families() -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(name, text, labels=labels) for name, text, labels in _GAUGES
        }


def _add_shadow(families: dict[str, GaugeMetricFamily], name: str, shadow: Shadow | None) -> None:
    """Add the metrics of a gallery's shadow bundle, if there is one."""
    if shadow is None or shadow.ended is not None:
        return
    families["vouch_shadow_info"].add_metric([name, shadow.terms.bundle_id], 1)
    mean = shadow.compared.probability_change
    if mean is not None:
        families["vouch_shadow_probability_change"].add_metric([name], mean)
