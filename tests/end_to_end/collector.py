"""An OpenTelemetry collector that keeps what it is sent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.waiting import wait_until

Value = str | int | float | bool


class Collector:
    """Listens on a free port; inside the context.

    Parameters
    ----------
    delay_s : before each answer, as one that is overloaded would.

    Attributes
    ----------
    bodies : what was posted, as it was sent.
    paths : where to.
    keys : their header ``x-api-key``.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        collector, ended = self, threading.Event()
        self._ended = ended

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                ended.wait(delay_s)
                collector.paths.append(self.path)
                collector.keys.append(self.headers["x-api-key"])
                collector.bodies.append(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def resource(self) -> dict[str, Value]:
        """Attributes of what sent the spans."""
        [first, *_] = [part for part in self._sent() for part in part.resource_spans]
        return {pair.key: pair.value.string_value for pair in first.resource.attributes}

    def spans(self) -> list[Span]:
        """Everything that came, in the order it did."""
        return [
            span
            for request in self._sent()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def root(self, name: str) -> Span:
        """The one span of a request with this name; waits for it."""
        wait_until(lambda: name in {span.name for span in self.spans()})
        [root] = [span for span in self.spans() if span.name == name]
        return root

    def parts(self, root: Span) -> list[Span]:
        """Its children, as they began."""
        parts = [span for span in self.spans() if span.parent_span_id == root.span_id]
        return sorted(parts, key=lambda span: span.start_time_unix_nano)

    def _sent(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]


def attributes(span: Span) -> dict[str, Value]:
    """Name → value."""
    return {
        pair.key: getattr(pair.value, str(pair.value.WhichOneof("value")))
        for pair in span.attributes
    }
