"""The worst request of each kind, as one client sends it for as long as it is let.

Run as a process of its own, beside whoever measures what others see meanwhile::

    python tests/torture/worst_requests.py PORT KIND SECONDS
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import quote

GALLERY = "/v1/galleries/digits"
N_CONNECTIONS = 2_000
NICE = 10
"""Priority of the attacker: on a machine of few cores nobody else should wait for its computing."""

Kind = Callable[[int, float], int]
"""Attacks a port until a moment; returns how many requests it has begun to send."""

Made = Callable[[], bytes]
"""A large request, made only to be sent: most who import this module send none."""


def head(method: str, path: str, *lines: str) -> bytes:
    """The head of a request to 127.0.0.1."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


CHUNKED = head("POST", f"{GALLERY}/search/raw", "Transfer-Encoding: chunked")


class Crowd:
    """Very many connections of one client, none of which is waited for."""

    def __init__(self, port: int, n: int) -> None:
        self._port, self._n = port, n
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._open):
            self.close(number)
        self._poll.close()

    def fill(self) -> list[int]:
        """Connect until there are so many again; returns those that are new."""
        new = []
        while len(self._open) < self._n:
            one = socket.socket()
            one.setblocking(False)
            if one.connect_ex(("127.0.0.1", self._port)) not in {0, errno.EINPROGRESS}:
                one.close()
                break
            self._open[one.fileno()] = one
            self._poll.register(one, select.EPOLLIN)
            new.append(one.fileno())
        return new

    def send(self, number: int, data: bytes) -> bool:
        """Send to one of them as much as goes at once; whether it is still open."""
        try:
            self._open[number].send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.close(number)
            return False
        return True

    def drop_answered(self, patience_s: float) -> None:
        """Close whatever was answered, or ended."""
        for number, _ in self._poll.poll(patience_s):
            self.close(number)

    def close(self, number: int) -> None:
        """Leave one connection at once, whatever still comes."""
        self._open.pop(number).close()


def in_a_crowd(request: bytes, *, at_once: bool) -> Kind:
    """Very many connections that send ``request``: each as it opens, or all when all are open."""

    def attack(port: int, until: float) -> int:
        n_sent = 0
        with Crowd(port, N_CONNECTIONS) as crowd:
            while time.monotonic() < until:
                new = crowd.fill()
                if at_once:
                    time.sleep(0.3)
                n_sent += sum(crowd.send(number, request) for number in new)
                crowd.drop_answered(0.3 if at_once else 0.05)
        return n_sent

    return attack


def connecting(port: int, until: float) -> int:
    """Connect and leave, again and again."""
    n_connected = 0
    while time.monotonic() < until:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            n_connected += 1
    return n_connected


def trickling(port: int, until: float) -> int:
    """Very many heads of which a piece comes now and then."""
    n_begun = 0
    with Crowd(port, N_CONNECTIONS) as crowd:
        while time.monotonic() < until:
            new = crowd.fill()
            n_begun += sum(crowd.send(number, b"GET / HTTP/1.1\r\n") for number in new)
            for number in list(crowd._open):
                crowd.send(number, b"a: b\r\n")
            crowd.drop_answered(0.05)
    return n_begun


def over_and_over(n: int, start: bytes | Made, piece: bytes = b"", end: bytes = b"") -> Kind:
    """A few connections that send a start, then pieces without end, or one and an end."""

    def once(port: int, until: float, first: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(first)
            while piece and not end and time.monotonic() < until:
                connection.sendall(piece)
            connection.sendall(piece + end)
            while connection.recv(2**16):
                pass

    def attack(port: int, until: float) -> int:
        n_sent = [0] * n
        first = start if isinstance(start, bytes) else start()

        def client(which: int) -> None:
            while time.monotonic() < until:
                n_sent[which] += 1
                with suppress(OSError):
                    once(port, until, first)

        with at_once(client, n):
            pass
        return sum(n_sent)

    return attack


@contextmanager
def at_once(client: Callable[[int], None], n: int) -> Iterator[None]:
    """So many clients at work, all of whom are waited for."""
    threads = [threading.Thread(target=client, args=(which,)) for which in range(n)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def whole(path: str, kind: str, body: bytes) -> bytes:
    """A request with a body."""
    length = f"Content-Length: {len(body)}"
    return head("POST", path, f"Content-Type: {kind}", length, "Connection: close") + body


def form(part: bytes, n: int = 1, *, more: str = "") -> bytes:
    """A form of the same part again and again."""
    parts = b"".join(b"--x\r\n" + part + b"\r\n" for _ in range(n))
    kind = f"multipart/form-data; boundary=x{more}"
    return whole(f"{GALLERY}/search", kind, parts + b"--x--\r\n")


FIELD = b'Content-Disposition: form-data; name="label"\r\n\r\n'
DEEP = '{"not":' * 30 + json.dumps({"a": {"in": [*range(600)]}}) + "}" * 30
BRACKETS = b'{"image_base64":"","filter":' + b'{"not":' * 4_000 + b"1" + b"}" * 4_001
SIMILAR = f"{GALLERY}/items/digit-0/similar?filter={quote(DEEP.replace(' ', ''))}"


def nothing(_: int, until: float) -> int:
    """Wait, so that there is something to compare with."""
    time.sleep(max(0.0, until - time.monotonic()))
    return 0


KINDS: dict[str, Kind] = {
    "nothing": nothing,
    "heads held": in_a_crowd(b"GET / HTTP/1.1\r\na: b", at_once=False),
    "heads sent at once": in_a_crowd(head("GET", "/v1/galleries"), at_once=True),
    "heads trickling": trickling,
    "pages at once": in_a_crowd(head("GET", "/"), at_once=True),
    "metrics at once": in_a_crowd(head("GET", "/metrics"), at_once=True),
    "descriptions at once": in_a_crowd(head("GET", "/openapi.json"), at_once=True),
    "pipelines at once": in_a_crowd(head("GET", "/v1/galleries") * 15, at_once=True),
    "no HTTP at once": in_a_crowd(b"\x16\x03\x01\x02\x00 what\r\n\r\n", at_once=True),
    "bodies held": in_a_crowd(CHUNKED, at_once=False),
    "connections": connecting,
    "endless headers": over_and_over(8, b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
    "endless chunks": over_and_over(8, CHUNKED, b"4000\r\n" + b"x" * 0x4000 + b"\r\n"),
    "tiny chunks": over_and_over(8, CHUNKED, b"1\r\nx\r\n" * 10_000),
    "large fields": over_and_over(4, lambda: form(FIELD + b"x" * 900_000, 20)),
    "many fields": over_and_over(4, lambda: form(FIELD + b"x", 100_000)),
    "large headers of a part": over_and_over(
        4, lambda: form(b"a: " + b"b" * 1_000_000 + b"\r\n\r\n", 10)
    ),
    "punycode": over_and_over(4, lambda: form(FIELD + b"a" * 900_000, more="; charset=punycode")),
    "deep filters": over_and_over(8, head("GET", SIMILAR, "Connection: close")),
    "deep documents": over_and_over(
        4, whole(f"{GALLERY}/search/json", "application/json", BRACKETS)
    ),
    "brackets": over_and_over(
        2,
        lambda: whole(
            f"{GALLERY}/search/json", "application/json", b"[" + b"[]," * 8_000_000 + b"[]]"
        ),
    ),
    "large base64": over_and_over(
        2,
        lambda: whole(
            f"{GALLERY}/search/json",
            "application/json",
            json.dumps({"image_base64": "A" * 26_000_000}).encode(),
        ),
    ),
}


CROWDS = [kind for kind in KINDS if kind.endswith((" at once", " held", " trickling"))]
CROWDS.append("connections")
"""Kinds of very many connections, from which the proxy in front protects other clients."""

OTHERS = [kind for kind in KINDS if kind not in CROWDS]


def main() -> None:
    """Attack; print how many requests were begun."""
    port, kind, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # though we be measured by `chrt`
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(KINDS[kind](port, time.monotonic() + seconds), flush=True)


if __name__ == "__main__":
    main()
