"""Whether a web server answers, within the time that it is given."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from index_builder.storage.web import Probe


@contextmanager
def server(status: int) -> Iterator[str]:
    """A server that answers HEAD with ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_address[1]}"
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "wanted"), [(200, True), (404, True), (503, False)])
def test_probe_answers_unless_the_server_fails(status: int, *, wanted: bool) -> None:
    with server(status) as url:
        assert Probe(url).answers() is wanted


def test_probe_of_a_closed_port_or_an_unknown_name_is_false() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    assert not Probe(f"http://127.0.0.1:{port}").answers()
    assert not Probe("http://no-such-host.invalid").answers()
    assert not Probe("no address").answers()


def test_probe_of_a_silent_server_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        assert not Probe(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3).answers()
    assert time.monotonic() - started < 2
