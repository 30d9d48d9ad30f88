"""A service of several processes answers as one, and outlives each of them."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from model_store.bundles.directory import activate
from service.http.server import WORKER_TIMEOUT_S
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.load import Load
from tests.end_to_end.processes import (
    TIMEOUT_S,
    VOUCH_SERVE,
    Redis,
    Service,
    environment,
    refuses_connections,
    wait_until,
)
from tests.end_to_end.questions import content, search, unseen
from tests.support.bundle_copies import copied, flip_a_byte
from tests.support.killing import halted

pytestmark = pytest.mark.process

GALLERY = "/v1/galleries/digits"
N = 2
N_ALLOWED = 6


@pytest.fixture(scope="module")
def several(
    digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, str]]:
    """A service of two processes that is written to, and a key that may ask it a few times."""
    folder = tmp_path_factory.mktemp("several")
    keys = KeysFile(folder / "keys.json")
    key = keys.make("read", rate_limit=f"{N_ALLOWED}/hour")
    with Redis(folder / "redis.log") as redis:
        settings = {
            "VOUCH_PROCESSES": str(N),
            "VOUCH_REDIS_URL": redis.url,
            "VOUCH_REDIS_TIMEOUT_S": str(TIMEOUT_S),
            "VOUCH_KEYS": str(keys.path),
            "VOUCH_ANONYMOUS": "true",
            "VOUCH_FEEDBACK": str(folder / "feedback.sqlite3"),
            "VOUCH_COMPACT_AFTER": "0",
        }
        root = folder / "bundles"
        copied(digits_bundle, root / digits_bundle.name)
        activate(root, digits_bundle.name)
        with Service(root, folder / "service.log", settings, VOUCH_SERVE) as running:
            wait_until(lambda: answering(running) == N, running)
            yield running, key


@pytest.fixture
def service(several: tuple[Service, str]) -> Service:
    return several[0]


@pytest.fixture
def alone(digits_bundle: Path, tmp_path: Path) -> Iterator[Service]:
    """A service of one process."""
    with Service(digits_bundle, tmp_path / "alone.log") as running:
        yield running


@pytest.fixture
def each(service: Service) -> Iterator[list[httpx2.Client]]:
    """A client of each process."""
    with ExitStack() as stack:
        yield [client_of(service, member, stack) for member in service.members()]


def client_of(service: Service, member: psutil.Process, stack: ExitStack) -> httpx2.Client:
    """A client whose one connection the kernel gave to this process."""
    for _ in range(100):
        client = stack.enter_context(
            httpx2.Client(base_url=service.http.base_url, timeout=TIMEOUT_S, trust_env=False)
        )
        before = n_connections(service, member)
        assert client.get("/livez").status_code == 200
        if n_connections(service, member) > before:
            return client
    raise AssertionError("no connection reaches this process")


def n_connections(service: Service, member: psutil.Process) -> int:
    """How many clients are connected to this process."""
    return len(ports_of_clients(service, member))


def ports_of_clients(service: Service, member: psutil.Process) -> set[int]:
    """The clients' own ports, of those who are connected to this process."""
    return {
        one.raddr.port
        for one in member.net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED and one.laddr.port == service.port
    }


def answering(service: Service) -> int:
    """How many processes answer, as the service says."""
    with httpx2.Client(base_url=service.http.base_url, trust_env=False, timeout=TIMEOUT_S) as http:
        ready = http.get("/readyz")
    return int(ready.json()["processes"]) if ready.status_code == 200 else 0


def sample(http: httpx2.Client, name: str) -> float:
    """The sum of a metric's samples, as one of the processes tells them."""
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines if line[len(name)] in " {")


def put(http: httpx2.Client, item_id: str, image: bytes, value: int) -> None:
    data = {"metadata": json.dumps({"value": value})}
    response = http.put(f"{GALLERY}/items/{item_id}", files={"image": ("i", image)}, data=data)
    assert response.status_code == 200, response.text


class TestAsOne:
    def test_answers_are_those_of_one_process(
        self, each: list[httpx2.Client], alone: Service, pictures: list[bytes]
    ) -> None:
        for image in pictures[:6]:
            wanted = content(alone.answer(image))
            for http in each:
                answer = search(http, unseen(image)).raise_for_status().json()
                assert answer["cache"] == "miss"
                assert {**content(answer), "bundle": ""} == {**wanted, "bundle": ""}

    def test_connections_are_divided_between_the_processes(self, service: Service) -> None:
        address = "127.0.0.1", service.port
        with ExitStack() as stack:
            ours = set()  # the ports of these alone: others' connections may end meanwhile
            for _ in range(64):
                connection = socket.create_connection(address, timeout=TIMEOUT_S)
                ours.add(stack.enter_context(connection).getsockname()[1])

            def of_each() -> list[int]:
                return [len(ours & ports_of_clients(service, one)) for one in service.members()]

            wait_until(lambda: sum(of_each()) == len(ours), service)
            connected = of_each()
        # A fair coin gives fewer than 12 of 64 once in a million times.
        assert all(n >= 12 for n in connected)

    def test_what_one_has_encoded_and_written_all_find(
        self, each: list[httpx2.Client], pictures: list[bytes]
    ) -> None:
        for n in range(8):
            writer, reader = each[n % N], each[(n + 1) % N]
            put(writer, "shared", pictures[n], n)
            assert reader.get(f"{GALLERY}/items/shared").json()["metadata"] == {"value": n}
            for http, cache in ((writer, "miss"), (reader, "hit")):
                answer = search(http, pictures[n]).json()
                assert answer["cache"] == cache
                found = {one["id"]: one["metadata"] for one in answer["results"]}
                assert found["shared"] == {"value": n}

    def test_a_query_of_one_is_known_to_the_other(
        self, each: list[httpx2.Client], pictures: list[bytes]
    ) -> None:
        one, other = each
        asked = search(one, unseen(pictures[0]), limit=3).json()
        page = other.get(f"{GALLERY}/search/next", params={"cursor": asked["next_cursor"]})
        assert page.status_code == 200, page.text
        said: dict[str, Any] = {
            "query_id": asked["query"]["id"],
            "item_id": asked["results"][0]["id"],
            "correct": True,
        }
        decided = other.post(f"{GALLERY}/feedback", json=said)
        assert decided.status_code in {200, 201}, decided.text

    def test_they_count_requests_together(
        self, each: list[httpx2.Client], several: tuple[Service, str]
    ) -> None:
        statuses = [
            each[n % N].get("/v1/galleries", headers=bearer(several[1])).status_code
            for n in range(N_ALLOWED + 4)
        ]
        assert statuses == [200] * N_ALLOWED + [429] * 4

    def test_metrics_of_each_are_those_of_all(
        self, each: list[httpx2.Client], pictures: list[bytes]
    ) -> None:
        names = ("vouch_verdicts_total", "vouch_stage_seconds_count", "vouch_batch_size_sum")
        before = [sample(each[0], name) for name in names]
        for http, n in zip(each, (2, 3), strict=True):
            for _ in range(n):
                assert search(http, unseen(pictures[0])).status_code == 200
        for http in each:
            grown = [sample(http, name) - was for name, was in zip(names, before, strict=True)]
            assert grown[0] == 5
            assert grown[1] >= 4 * 5
            assert grown[2] >= 5  # and a canary now and then
            assert sample(http, "vouch_processes") == N
            assert sample(http, "vouch_gallery_items") == sample(each[0], "vouch_gallery_items")
            assert sample(http, "vouch_build_info") == 1
            assert sample(http, "vouch_requests_in_flight") == 0


class TestItLosesProcesses:
    def test_one_that_is_killed_costs_what_it_was_at_work_on(
        self, service: Service, pictures: list[bytes]
    ) -> None:
        killed, other = service.members()
        before = service.metric("vouch_verdicts_total")
        with Load(service, pictures, 6, unseen) as load:
            load.wait_for_answers(12)
            n_asked = len(load.asked)
            killed.kill()
            wait_until(lambda: len(load.asked) > n_asked + 12, service)
            wait_until(lambda: len(set(service.members()) - {killed}) == N, service)
            wait_until(lambda: answering(service) == N, service)
            load.wait_for_answers(12)
        lost = [asked for asked in load.asked if asked.status != 200]
        assert {asked.status for asked in lost} <= {0}
        assert len(lost) <= 6
        members = service.members()
        assert other in members
        assert killed not in members
        assert len(members) == N
        # What it had counted before is counted still; what it had answered last is, too.
        counted = service.metric("vouch_verdicts_total") - before
        assert len(load.asked) - len(lost) <= counted <= len(load.asked)

    def test_told_to_end_it_answers_what_it_has_begun(
        self, service: Service, each: list[httpx2.Client], pictures: list[bytes]
    ) -> None:
        children = psutil.Process(service.popen.pid).children(recursive=True)
        with ThreadPoolExecutor(N) as callers:
            with halted(*service.encoders()):
                asked = [callers.submit(search, http, unseen(pictures[0])) for http in each]
                wait_until(lambda: service.metric("vouch_requests_in_flight") == N, service)
                service.send(signal.SIGTERM)
                wait_until(lambda: refuses_connections(service.port), service)
            assert [one.result().status_code for one in asked] == [200] * N
        assert service.popen.wait(TIMEOUT_S) == 0
        _, left = psutil.wait_procs(children, timeout=10)
        assert left == []
        assert "Traceback" not in service.printed()


def test_workers_end_when_their_parent_is_killed(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis
) -> None:
    settings = {"VOUCH_PROCESSES": str(N), "VOUCH_REDIS_URL": redis_server.url}
    log = tmp_path / "service.log"
    with Service(digits_bundle, log, settings, VOUCH_SERVE) as running:
        wait_until(lambda: answering(running) == N, running)
        members = running.members()
        children = psutil.Process(running.popen.pid).children(recursive=True)
        assert len(members) == N
        running.kill()
        _, left = psutil.wait_procs(children, timeout=TIMEOUT_S)
        assert left == []


def test_second_signal_ends_workers_that_drain(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis
) -> None:
    settings = {"VOUCH_PROCESSES": str(N), "VOUCH_REDIS_URL": redis_server.url}
    settings["VOUCH_DRAIN_S"] = "600"
    with Service(digits_bundle, tmp_path / "service.log", settings, VOUCH_SERVE) as running:
        wait_until(lambda: answering(running) == N, running)
        running.send(signal.SIGTERM)
        wait_until(lambda: running.http.get("/readyz").status_code == 503, running)
        # The one that answers may not have been told yet.
        wait_until(lambda: running.http.get("/livez").headers.get("connection") == "close", running)
        running.send(signal.SIGTERM)
        assert running.popen.wait(TIMEOUT_S) == 0
        assert "Traceback" not in running.printed()
        assert len(running.logged("stopping")) == N


def test_workers_that_cannot_serve_end_the_service(
    digits_bundle: Path, tmp_path: Path, redis_server: Redis
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(digits_bundle, copy)
    flip_a_byte(copy / "gallery.faiss")
    done = subprocess.run(
        [*VOUCH_SERVE, "--bundle", str(copy), "--port", "0", "--processes", str(N)],
        capture_output=True,
        text=True,
        check=False,
        timeout=WORKER_TIMEOUT_S,  # the end of a worker is seen before it
        env=environment({"VOUCH_REDIS_URL": redis_server.url}),
    )
    assert done.returncode == 1
    assert "gallery.faiss differs from its manifest" in done.stderr
    assert "Traceback" not in done.stderr
