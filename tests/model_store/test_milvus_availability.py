"""While Milvus is down, calls fail in milliseconds; when it is back, they succeed."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from model_store.errors import GalleryUnavailable
from model_store.gallery import remote
from model_store.gallery.milvus import collection
from model_store.gallery.milvus.collection import Collection, MilvusAccess
from tests.support.waiting import TIMEOUT_S, wait_until


class MilvusException(Exception):
    code = 0


class Client:
    """A client of pymilvus whose calls hang as those of a dead server do."""

    hangs = threading.Event()
    asked = threading.Event()

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def query(self, *_: object, **__: object) -> str:
        self.asked.set()
        if self.hangs.is_set():
            time.sleep(0.3)
            raise MilvusException
        return "answer"

    def get_server_version(self, **_: object) -> str:
        if self.hangs.is_set():
            raise MilvusException
        return "v2.6.11"

    def close(self) -> None:
        pass


class Server:
    """A port that takes connections, or none."""

    def __init__(self) -> None:
        self.listener: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def stop(self) -> None:
        if self.listener is not None:
            self.listener.close()
        self.listener = None
        Client.hangs.set()

    def start(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        Client.hangs.clear()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()
    Client.hangs.clear()


@pytest.fixture
def reached(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collection]:
    module = SimpleNamespace(MilvusClient=Client, MilvusException=MilvusException)
    monkeypatch.setattr(collection, "import_client", lambda *_: module)
    monkeypatch.setattr(remote, "LOOK_EVERY_S", 0.02)
    made = Collection("shoes", MilvusAccess(f"http://127.0.0.1:{server.port}"))
    yield made
    made.close()


def seconds_of(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    with pytest.raises(GalleryUnavailable):
        call()
    return time.monotonic() - began


def test_calls_to_a_dead_milvus_fail_at_once_after_the_first(
    server: Server, reached: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    assert reached.ask("query") == "answer"
    server.stop()
    assert seconds_of(lambda: reached.ask("query")) >= 0.3
    assert min(seconds_of(lambda: reached.ask("query")) for _ in range(5)) < 0.05
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert warnings == ["Milvus does not answer; requests are refused until it does"]


def test_calls_succeed_when_milvus_is_back(server: Server, reached: Collection) -> None:
    server.stop()
    seconds_of(lambda: reached.ask("query"))
    server.start()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            assert reached.ask("query") == "answer"
        except GalleryUnavailable:
            time.sleep(0.01)
        else:
            return
    pytest.fail("calls go on to fail")


def test_call_beside_a_late_one_looks_whether_milvus_is_there(
    server: Server, reached: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of the first call is still to come."""
    monkeypatch.setattr(remote, "SLOW_S", 0.0)
    server.stop()
    first = threading.Thread(target=lambda: seconds_of(lambda: reached.ask("query")))
    Client.asked.clear()
    first.start()
    assert Client.asked.wait(TIMEOUT_S)
    assert seconds_of(lambda: reached.ask("query")) < 0.25
    first.join()


def test_calls_to_a_milvus_that_hangs_fail_at_once_after_the_first(
    reached: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its port takes connections, and nothing answers."""
    monkeypatch.setattr(remote, "SLOW_S", 0.2)
    assert reached.ask("query") == "answer"
    Client.hangs.set()
    assert seconds_of(lambda: reached.ask("query")) >= 0.3
    assert min(seconds_of(lambda: reached.ask("query")) for _ in range(5)) < 0.05
    [warned] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "MilvusException" in str(vars(warned)["fields"])
    Client.hangs.clear()
    wait_until(lambda: reached_again(reached))


def reached_again(reached: Collection) -> bool:
    try:
        return bool(reached.ask("query") == "answer")
    except GalleryUnavailable:
        return False


def test_failed_call_to_a_milvus_that_is_there_leaves_others_alone(
    reached: Collection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow, or refused this call."""
    monkeypatch.setattr(remote, "SLOW_S", 0.0)
    monkeypatch.setattr(Client, "get_server_version", lambda *_, **__: "v2.6.11")
    Client.hangs.set()
    seconds_of(lambda: reached.ask("query"))
    Client.hangs.clear()
    assert reached.ask("query") == "answer"
    assert server.listener is not None
