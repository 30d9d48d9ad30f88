"""One caller takes all it can get, in four ways; another one is answered all the same."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.processes import Service
from tests.end_to_end.questions import unseen
from tests.support.hostile_images import scan_bomb

SECONDS = 3.0
N_CONNECTIONS = 70
GALLERY = "/v1/galleries/digits"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A file of keys, with one of a caller that floods and one of a good one."""
    file = KeysFile(tmp_path_factory.mktemp("keys") / "keys.json")
    return file.path, file.make("read", name="flood"), file.make("read", name="good")


@pytest.fixture(scope="module")
def shared(
    digits_bundle: Path, keys: tuple[Path, str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service that two callers share; it remembers no image."""
    settings = {"VOUCH_KEYS": str(keys[0]), "VOUCH_CACHE_BYTES": "0"}
    with Service(digits_bundle, tmp_path_factory.mktemp("shared") / "log", settings) as running:
        yield running


Flood = Callable[[Service, dict[str, str], threading.Event], None]


def slow_bodies(service: Service, key: dict[str, str], over: threading.Event) -> None:
    """Uploads that never end."""
    head = f"POST {GALLERY}/search/raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in key.items())
    while not over.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(f"{head}\r\n".encode())
            connection.settimeout(0.2)
            while not over.is_set():
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    if connection.recv(2**16):
                        break


BOMB = scan_bomb(150)


def costly_images(service: Service, key: dict[str, str], over: threading.Event) -> None:
    """Small files that take seconds to decode."""
    turn = 0
    with client_of(service, key) as client:
        while not over.is_set():
            turn += 1
            client.post(f"{GALLERY}/search/raw", content=BOMB + b"%d" % turn)


def costly_filters(service: Service, key: dict[str, str], over: threading.Event) -> None:
    """Filters of very many values, each another one."""
    turn = 0
    with client_of(service, key) as client:
        item = client.get(f"{GALLERY}/items", params={"limit": 1}).json()["items"][0]["id"]
        while not over.is_set():
            turn += 1
            asked = {f"a{turn}": {"in": [n % 10 for n in range(720)]}}
            text = json.dumps(asked, separators=(",", ":"))
            client.get(f"{GALLERY}/items/{item}/similar?filter={quote(text)}")


BRACKETS = b"[" + b"[]," * 8_000_000 + b"[]]"


def brackets(service: Service, key: dict[str, str], over: threading.Event) -> None:
    """Documents of nothing but structure."""
    with client_of(service, key) as client:
        while not over.is_set():
            with suppress(httpx2.TransportError):  # it may be refused while it is being sent
                client.post(
                    f"{GALLERY}/search/json",
                    content=BRACKETS,
                    headers={"Content-Type": "application/json"},
                )


FLOODS: dict[str, tuple[Flood, int]] = {
    "slow bodies": (slow_bodies, N_CONNECTIONS),
    "costly images": (costly_images, 6),
    "costly filters": (costly_filters, 30),
    "brackets": (brackets, 2),
}


def client_of(service: Service, key: dict[str, str]) -> httpx2.Client:
    return httpx2.Client(base_url=service.http.base_url, headers=key, timeout=60, trust_env=False)


@contextmanager
def flooded(service: Service, key: dict[str, str], how: Flood, n: int) -> Iterator[None]:
    """A caller that does ``how`` with ``n`` connections."""
    over = threading.Event()
    threads = [threading.Thread(target=how, args=(service, key, over)) for _ in range(n)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("flood", FLOODS)
def test_the_other_caller_is_answered(
    shared: Service,
    keys: tuple[Path, str, str],
    pictures: list[bytes],
    flood: str,
    record_property: Callable[[str, object], None],
) -> None:
    how, n = FLOODS[flood]
    statuses: list[int] = []
    seconds: list[float] = []
    with flooded(shared, bearer(keys[1]), how, n), client_of(shared, bearer(keys[2])) as client:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(statuses) < 20:
            started = time.monotonic()
            image = unseen(pictures[len(statuses) % len(pictures)])
            answered = client.post(f"{GALLERY}/search/raw", content=image)
            statuses.append(answered.status_code)
            seconds.append(time.monotonic() - started)
    record_property("p95_s", sorted(seconds)[int(0.95 * len(seconds))])
    record_property("answered", len(statuses))
    assert statuses.count(200) >= 0.95 * len(statuses), statuses
