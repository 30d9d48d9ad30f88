"""One caller that takes all it can get, in each of four ways.

Run as a process of its own, beside whoever measures what another caller gets meanwhile::

    python -m tests.torture.floods URL KEY KIND SECONDS
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, urlsplit

import httpx2

from tests.end_to_end.keys import bearer
from tests.support.hostile_images import scan_bomb
from tests.torture.worst_requests import GALLERY, NICE, at_once


class Flow:
    """What the clients of one flood share: the address, a key, and whether to go on."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key
        self._n_sent: Counter[int] = Counter()
        self._ended = threading.Event()

    def client(self) -> httpx2.Client:
        """Open a client with the key."""
        return client_of(self.url, self.key)

    def goes_on(self) -> bool:
        """Return whether to send another request, which is then counted."""
        if self._ended.is_set():
            return False
        self._n_sent[threading.get_ident()] += 1
        return True

    @property
    def ended(self) -> bool:
        """Whether to leave the request that is being sent, too."""
        return self._ended.is_set()

    def wait_for(self, n_clients: int) -> None:
        """Wait until so many clients have begun."""
        while len(self._n_sent) < n_clients:
            time.sleep(0.01)

    def end(self) -> None:
        """Have every client send no more."""
        self._ended.set()

    @property
    def n_sent(self) -> int:
        """How many requests were begun, by all clients."""
        return self._n_sent.total()


Flood = Callable[[Flow], None]
"""Sends requests until its flow ends."""

BOMB = scan_bomb(150)
BRACKETS = b"[" + b"[]," * 8_000_000 + b"[]]"


def slow_bodies(flow: Flow) -> None:
    """Send an upload that never ends."""
    head = f"POST {GALLERY}/search/raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in bearer(flow.key).items())
    place = ("127.0.0.1", urlsplit(flow.url).port)
    while flow.goes_on():
        with suppress(OSError), socket.create_connection(place) as connection:
            connection.sendall(f"{head}\r\n".encode())
            connection.settimeout(0.2)
            while not flow.ended:
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    if connection.recv(2**16):
                        break


def costly_images(flow: Flow) -> None:
    """Send small files that take seconds to decode."""
    with flow.client() as client:
        while flow.goes_on():
            with suppress(httpx2.TransportError):
                client.post(f"{GALLERY}/search/raw", content=BOMB + os.urandom(8))


def costly_filters(flow: Flow) -> None:
    """Send filters of very many values, each another one."""
    with flow.client() as client:
        while flow.goes_on():
            field = f"a{time.monotonic_ns()}"
            asked = {field: {"in": [n % 10 for n in range(720)]}}
            text = json.dumps(asked, separators=(",", ":"))
            with suppress(httpx2.TransportError):
                client.get(f"{GALLERY}/items/digit-0000/similar?filter={quote(text)}")


def brackets(flow: Flow) -> None:
    """Send documents of nothing but structure."""
    json_body = {"Content-Type": "application/json"}
    with flow.client() as client:
        while flow.goes_on():
            with suppress(httpx2.TransportError):  # it may be refused while it is being sent
                client.post(f"{GALLERY}/search/json", content=BRACKETS, headers=json_body)


FLOODS: dict[str, tuple[Flood, int]] = {
    "slow bodies": (slow_bodies, 70),
    "costly images": (costly_images, 6),
    "costly filters": (costly_filters, 30),
    "brackets": (brackets, 2),
}
"""The floods, and with how many connections each comes."""


def client_of(url: str, key: str) -> httpx2.Client:
    """A client with a key, of an address without TLS."""
    return httpx2.Client(
        base_url=url, headers=bearer(key), timeout=60, trust_env=False, verify=False
    )


def main() -> None:
    """Flood; say when every client has begun, and in the end how many requests were sent."""
    url, key, kind, seconds = sys.argv[1:]
    flood, n = FLOODS[kind]
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    flow = Flow(url, key)
    with at_once(lambda _: flood(flow), n):
        flow.wait_for(n)
        print("begun", flush=True)
        time.sleep(float(seconds))
        flow.end()
    print(flow.n_sent, flush=True)


if __name__ == "__main__":
    main()
