"""Very many connections that are held: each sends as much as it is let, and never the end.

Run as a process of its own, beside whoever looks at the service's memory meanwhile::

    python -m tests.torture.holding PORT KIND SECONDS
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Self

from tests.torture.worst_requests import CHUNKED, FIELD, GALLERY, N_CONNECTIONS, NICE, head

N_ADDRESSES = 40
"""Addresses that connections come from, in turn: so many callers."""

AT_ONCE_BYTES = 2**16
MIB = 2**20
JSON = "Content-Type: application/json"
FORM = "Content-Type: multipart/form-data; boundary=x"


@dataclass(frozen=True, slots=True)
class Holding:
    """The bytes that a connection sends, and whether it reads what is answered."""

    sent: bytes
    reads: bool = True


def body(path: str, kind: str, data: bytes) -> bytes:
    """A request whose body lacks its end."""
    return head("POST", path, kind, f"Content-Length: {len(data) + 1}") + data


def files(n: int, n_bytes: int) -> bytes:
    """The beginning of a form of image files."""
    named = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    return (named + b"x" * n_bytes + b"\r\n") * n


KINDS: dict[str, Holding] = {
    "a long header": Holding(b"GET / HTTP/1.1\r\na: " + b"b" * 32_000),
    "many headers": Holding(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 127),
    "large headers": Holding(b"GET / HTTP/1.1\r\n" + (b"a: " + b"b" * 245 + b"\r\n") * 127),
    "bodies": Holding(body(f"{GALLERY}/search/raw", "Content-Type: image/png", b"x" * 20 * MIB)),
    "bodies in chunks": Holding(CHUNKED + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 1_280),
    "documents": Holding(
        body(f"{GALLERY}/search/json", JSON, b'{"image_base64":"' + b"A" * 26_000_000)
    ),
    "forms of fields": Holding(
        body(f"{GALLERY}/search", FORM, (b"--x\r\n" + FIELD + b"x" * (MIB - 200) + b"\r\n") * 20)
    ),
    "forms of small files": Holding(body(f"{GALLERY}/search/batch", FORM, files(64, MIB - 10_000))),
    "descriptions unread": Holding(head("GET", "/openapi.json") * 4, reads=False),
    "pages unread": Holding(head("GET", "/page/words.js") * 4, reads=False),
    "items unread": Holding(head("GET", f"{GALLERY}/items?limit=100") * 4, reads=False),
}


class Held:
    """Connections that are held, and opened again where they were closed."""

    def __init__(self, port: int, holding: Holding) -> None:
        self._port, self._holding = port, holding
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._n_sent: dict[int, int] = {}
        self.n = self.n_most = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._open):
            self._close(number)
        self._poll.close()

    def go_on(self) -> None:
        """Open as many as there should be, and send what goes at once."""
        while len(self._open) < N_CONNECTIONS and self._connect():
            pass
        self.n_most = max(self.n_most, len(self._open))
        for number, event in self._poll.poll(0.1):
            if event & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                self._close(number)
                continue
            if event & select.EPOLLIN:
                self._read(number)
            if number in self._open and event & select.EPOLLOUT:
                self._send(number)

    def _connect(self) -> bool:
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.0.1.{1 + self.n % N_ADDRESSES}", 0))
        if one.connect_ex(("127.0.0.1", self._port)) not in {0, errno.EINPROGRESS}:
            one.close()
            return False
        self.n += 1
        self._open[one.fileno()], self._n_sent[one.fileno()] = one, 0
        self._poll.register(one, self._events() | select.EPOLLOUT)
        return True

    def _events(self) -> int:
        return select.EPOLLRDHUP | (select.EPOLLIN if self._holding.reads else 0)

    def _read(self, number: int) -> None:
        try:
            if not self._open[number].recv(AT_ONCE_BYTES):
                self._close(number)
        except BlockingIOError:
            pass
        except OSError:
            self._close(number)

    def _send(self, number: int) -> None:
        at = self._n_sent[number]
        piece = memoryview(self._holding.sent)[at : at + AT_ONCE_BYTES]
        if not piece:
            self._poll.modify(number, self._events())
            return
        try:
            self._n_sent[number] += self._open[number].send(piece)
        except BlockingIOError:
            pass
        except OSError:
            self._close(number)

    def _close(self, number: int) -> None:
        self._open.pop(number).close()
        del self._n_sent[number]


def main() -> None:
    """Hold; print how many connections were made, and held at once at most."""
    port, kind, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    until = time.monotonic() + seconds
    with Held(port, KINDS[kind]) as held:
        while time.monotonic() < until:
            held.go_on()
    print(held.n, held.n_most, flush=True)


if __name__ == "__main__":
    main()
