"""Traces for an OpenTelemetry collector: the stages of each request.

Only this module uses OpenTelemetry; it is imported only if `VOUCH_OTLP_ENDPOINT` is set. The tracer
is not registered globally: other libraries would then add spans that contain data of requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_HEADERS as HEADERS
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_TRACES_HEADERS as TRACES_HEADERS,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers
from opentelemetry.util.types import AttributeValue

from model_store.installation import installed_version
from model_store.programs import variable
from service.observability.logs import UNMATCHED, RequestRecord, SearchRecord

logger = logging.getLogger(__name__)

TRACES_PATH = "/v1/traces"

EXPORT_TIMEOUT_S = 3.0
"""Timeout for sending a batch of spans, with all retries. After the timeout, the batch is
dropped."""

FLUSH_TIMEOUT_S = 5.0
"""Timeout for unsent spans when the service ends; well below Docker's 30 s."""

NOT_TRACED = {"/livez", "/readyz", "/metrics"}
"""Paths that health checks and Prometheus request every few seconds; their traces would hide other
traces."""

AFTER_ENCODING = ("search", "decide", "items")


class OtlpTracing:
    """Sends one trace for each request to a collector, by OTLP over HTTP, on a separate thread.

    Spans wait in a bounded queue. If the collector is slow or unreachable, the oldest spans are
    dropped; requests are not delayed. If a caller sends `traceparent`, the trace continues the
    caller's trace, with the same sampling decision. `OTEL_*` variables set the sampler, the
    collector's headers and the resource names.

    Parameters
    ----------
    endpoint : base URL of the collector, such as ``http://collector:4318``.
    secrets_dir : directory that can have a file with the collector's headers.
    """

    def __init__(self, endpoint: str, secrets_dir: Path | None = None) -> None:
        base = endpoint.rstrip("/").removesuffix(TRACES_PATH)
        headers = variable(TRACES_HEADERS, secrets_dir) or variable(HEADERS, secrets_dir)
        self._exporter = OTLPSpanExporter(
            f"{base}{TRACES_PATH}",
            headers=parse_env_headers(headers, liberal=True) if headers else None,
            timeout=EXPORT_TIMEOUT_S,
        )
        ours = {"service.name": "vouch", "service.version": installed_version()}
        resource = Resource.create(ours).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("vouch")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Callable[[], None]:
        """Start the trace of a request, as a part of the caller's trace.

        Returns a function that ends this trace.
        """
        if record.path in NOT_TRACED:
            return lambda: None
        names = ("traceparent", "tracestate")
        carrier = {name: headers[name] for name in names if name in headers}
        span = self._tracer.start_span(
            record.method,
            self._propagator.extract(carrier, Context()),
            SpanKind.SERVER,
            start_time=record.started_ns,
        )
        record.trace_id = format_trace_id(span.get_span_context().trace_id)
        return lambda: self._end(span, record)

    async def close(self) -> None:
        """Send the outstanding spans, for at most `FLUSH_TIMEOUT_S`."""
        # The SDK would wait up to 30 s, and this limit cannot be changed.
        closing = Thread(target=self._provider.shutdown, name="flush-spans", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, FLUSH_TIMEOUT_S)
        if closing.is_alive():
            logger.warning("the collector does not answer; the last spans are lost")
            self._exporter.shutdown()  # type: ignore[no-untyped-call] # ends its repetitions

    def _end(self, span: Span, record: RequestRecord) -> None:
        if span.is_recording():
            if record.route != UNMATCHED:
                span.update_name(f"{record.method} {record.route}")
            span.set_attributes(_attributes(record))
            if record.status >= 500:
                span.set_status(StatusCode.ERROR)
            parent = set_span_in_context(span, Context())
            for search in record.searches:
                for stage, began_ns, ended_ns in stage_times(search):
                    part = self._tracer.start_span(stage, parent, start_time=began_ns)
                    part.end(ended_ns)
        span.end(time.time_ns())


def stage_times(search: SearchRecord) -> Iterator[tuple[str, int, int]]:
    """Yield each stage of a search with its start and end, in nanoseconds since 1970.

    The service measures the durations of the stages, but not their start times. This function
    therefore assumes start times. The first stage begins when the search begins, and the other
    stages up to encoding follow without gaps. The last of the later stages ends when the search
    ends. Between these two groups, the query waited for a thread. Another request may have started
    the encoding. In this case, `decode` and `encode` begin before the search.
    """
    lengths = {stage: round(1e9 * seconds) for stage, seconds in search.seconds.items()}
    total = lengths.pop("total", sum(lengths.values()))
    late = {stage: lengths.pop(stage) for stage in AFTER_ENCODING if stage in lengths}
    at = search.ended_ns - total
    if "cache" in lengths:
        length = lengths.pop("cache")
        yield "cache", at, at + length
        at += length
    found_at = search.ended_ns - sum(late.values())
    at = min(at, found_at - sum(lengths.values()))
    for stage, length in lengths.items():
        yield stage, at, at + length
        at += length
    at = found_at
    for stage, length in late.items():
        yield stage, at, at + length
        at += length


def _attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """Return the attributes of a request's span, without free text from the client."""
    known: dict[str, AttributeValue | None] = {
        "http.request.method": record.method,
        "http.route": None if record.route == UNMATCHED else record.route,
        "http.response.status_code": record.status,
        "error.type": record.code,
        "vouch.request_id": record.request_id,
        "vouch.gallery": record.gallery,
    }
    if len(record.searches) == 1:
        [search] = record.searches
        known |= {
            "vouch.verdict": search.verdict,
            "vouch.cache": search.cache,
            "vouch.uncertainty_percentile": search.uncertainty_percentile,
            "vouch.outlier_p_value": search.outlier_p_value,
        }
    elif record.searches:
        known["vouch.searches"] = len(record.searches)
    return {name: value for name, value in known.items() if value is not None}
