"""A web server in this process for pages under test; who answers is told by a header.

It costs half of what answers that Playwright puts in place of the network do: with these a browser
keeps no script that it has read already.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORIGIN = "http://vouch.test"
"""What pages take it for; an origin that is not secure."""

HEADER = "X-Stage"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as its answer may depend on it."""

    method: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered; None in place of it lets the browser wait until the connection ends."""

    body: bytes
    content_type: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_kept: bool = False


class Stage(ThreadingHTTPServer):
    """The server; `players` answer, each by the token that its pages send."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.players: dict[str, Callable[[Asked], Reply | None]] = {}
        self._tokens = itertools.count()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def option(self) -> str:
        """With it a browser finds the server at `ORIGIN`."""
        return f"--host-resolver-rules=MAP vouch.test:80 127.0.0.1:{self.server_port}"

    def enter(self, player: Callable[[Asked], Reply | None]) -> str:
        """Have ``player`` answer those who send the token that is returned."""
        token = str(next(self._tokens))
        self.players[token] = player
        return token

    def leave(self, token: str) -> None:
        """Answer those who still send this token with an error."""
        self.players.pop(token, None)


@cache
def stage() -> Stage:
    """Return the server of this process."""
    return Stage()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stage

    def handle(self) -> None:
        with suppress(ConnectionError):  # a page that was left waits for nothing
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Say nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        player = self.server.players.get(self.headers.get(HEADER, ""))
        asked = Asked(self.command, f"{ORIGIN}{self.path}", body)
        reply = Reply(b"", "text/plain", 410) if player is None else player(asked)
        if reply is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        kept = "max-age=3600" if reply.is_kept else "no-store"
        headers = {"Content-Type": reply.content_type, "Cache-Control": kept, **reply.headers}
        for name, value in {**headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - their names
