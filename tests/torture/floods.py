"""One caller that takes all it can get, in each of four ways.

Run as a process of its own, beside whoever measures what another caller gets meanwhile::

    python -m tests.torture.floods URL KEY KIND SECONDS
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, urlsplit

import httpx2

from tests.end_to_end.keys import bearer
from tests.support.hostile_images import scan_bomb
from tests.torture.worst_requests import GALLERY, NICE, at_once

Flood = Callable[[str, str, float], int]
"""Floods a service, of this address, with this key, until a moment; returns how often it asked."""

BOMB = scan_bomb(150)
BRACKETS = b"[" + b"[]," * 8_000_000 + b"[]]"


def slow_bodies(url: str, key: str, until: float) -> int:
    """Send an upload that never ends."""
    n_sent = 0
    head = f"POST {GALLERY}/search/raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in bearer(key).items())
    place = ("127.0.0.1", urlsplit(url).port)
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(place) as connection:
            n_sent += 1
            connection.sendall(f"{head}\r\n".encode())
            connection.settimeout(0.2)
            while time.monotonic() < until:
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    if connection.recv(2**16):
                        break
    return n_sent


def costly_images(url: str, key: str, until: float) -> int:
    """Send small files that take seconds to decode."""
    n_sent = 0
    with client_of(url, key) as client:
        while time.monotonic() < until:
            n_sent += 1
            client.post(f"{GALLERY}/search/raw", content=BOMB + os.urandom(8))
    return n_sent


def costly_filters(url: str, key: str, until: float) -> int:
    """Send filters of very many values, each another one."""
    n_sent = 0
    with client_of(url, key) as client:
        while time.monotonic() < until:
            field = f"a{time.monotonic_ns()}"
            asked = {field: {"in": [n % 10 for n in range(720)]}}
            text = json.dumps(asked, separators=(",", ":"))
            n_sent += 1
            client.get(f"{GALLERY}/items/digit-0000/similar?filter={quote(text)}")
    return n_sent


def brackets(url: str, key: str, until: float) -> int:
    """Send documents of nothing but structure."""
    n_sent = 0
    with client_of(url, key) as client:
        while time.monotonic() < until:
            n_sent += 1
            with suppress(httpx2.TransportError):  # it may be refused while it is being sent
                client.post(
                    f"{GALLERY}/search/json",
                    content=BRACKETS,
                    headers={"Content-Type": "application/json"},
                )
    return n_sent


FLOODS: dict[str, tuple[Flood, int]] = {
    "slow bodies": (slow_bodies, 70),
    "costly images": (costly_images, 6),
    "costly filters": (costly_filters, 30),
    "brackets": (brackets, 2),
}
"""The floods, and with how many connections each comes."""


def client_of(url: str, key: str) -> httpx2.Client:
    """A client with a key."""
    return httpx2.Client(base_url=url, headers=bearer(key), timeout=60, trust_env=False)


def main() -> None:
    """Say that it begins, flood, and print how many requests were sent."""
    url, key, kind, seconds = sys.argv[1:]
    flood, n = FLOODS[kind]
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    print("begun", flush=True)
    until = time.monotonic() + float(seconds)
    n_sent = [0] * n

    def client(which: int) -> None:
        while time.monotonic() < until:
            with suppress(httpx2.TransportError):
                n_sent[which] += flood(url, key, until)

    with at_once(client, n):
        pass
    print(sum(n_sent), flush=True)


if __name__ == "__main__":
    main()
