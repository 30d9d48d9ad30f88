"""A small web server, honest or hostile, in threads of the tests' own process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Answer = Callable[["Handler"], None]
"""Writes what a path is answered with."""


class Handler(BaseHTTPRequestHandler):
    """Answers as its server's `WebServer` says."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        web = self.server.web
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        with web.lock:
            web.asked[path] += 1
            web.heads.append(str(self.headers))
        answer = web.answers.get(path)
        try:
            if answer is not None:
                answer(self)
            else:
                self._file(web.folder / path.lstrip("/"))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _file(self, path: Path) -> None:
        if path.is_file():
            self.send(path.read_bytes())
        else:
            self.send(b"", 404)

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        """An answer with its length."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    web: WebServer

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


@dataclass
class WebServer:
    """Files of a folder, and paths that are answered otherwise.

    Attributes
    ----------
    asked : how often for each path.
    heads : of all requests.
    """

    url: str
    folder: Path
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    heads: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def web_server(folder: Path) -> Iterator[WebServer]:
    """Serve ``folder`` on this machine."""
    server = _Server(("127.0.0.1", 0), Handler)
    server.web = WebServer(f"http://127.0.0.1:{server.server_address[1]}", folder)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield server.web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int, **headers: str) -> Answer:
    """No file, but a status."""
    return lambda request: request.send(b"no", code, **headers)


def hangs_up(request: Handler) -> None:
    """Ends the connection without a word."""
    request.close_connection = True
    request.connection.close()


def silent(request: Handler) -> None:
    """Takes the request, and says nothing."""
    time.sleep(30)
    request.close_connection = True


def dribbling_head(request: Handler) -> None:
    """Sends a head that never ends, letter by letter."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX-")
    _dribble(request, b"a")


def dribbling_body(request: Handler) -> None:
    """Sends a file of a megabyte, byte by byte."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    _dribble(request, b"\x89")


def endless(request: Handler) -> None:
    """Sends zeros as long as somebody takes them."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    for _ in range(100_000):
        request.wfile.write(chunk)


def promises_more(body: bytes) -> Answer:
    """Sends ``body``, says that it has a byte more, and hangs up."""

    def answer(request: Handler) -> None:
        request.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body
        )
        hangs_up(request)

    return answer


def promises_less(body: bytes) -> Answer:
    """Sends ``body``, and says that it has a hundred bytes less."""

    def answer(request: Handler) -> None:
        request.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) - 100) + body
        )
        hangs_up(request)

    return answer


def at_second_try(first: Answer, then: Answer) -> Answer:
    """Answers well when it is asked again."""
    waiting = [first]

    def answer(request: Handler) -> None:
        (waiting.pop() if waiting else then)(request)

    return answer


def _dribble(request: Handler, byte: bytes) -> None:
    request.wfile.flush()
    for _ in range(300):
        request.wfile.write(byte)
        request.wfile.flush()
        time.sleep(0.1)
