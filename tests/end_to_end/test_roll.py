"""`docker/roll.sh` replaces all replicas behind the shipped HAProxy, and no request fails.

Real services and a real HAProxy. A stand-in for the `docker` command starts and stops the services.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from model_store.bundles.directory import current_id
from tests.end_to_end.processes import TIMEOUT_S, Process, Service, free_port, wait_until
from tests.support.released_bundles import released

DOCKER = Path(__file__).parents[2] / "docker"
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
SEARCH = "/v1/galleries/released-0.2.0/search/raw"

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy")

GONE = "gone"

STAND_IN = """#!{python}
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as connection:
    connection.sendall(json.dumps(sys.argv[1:]).encode())
    connection.shutdown(socket.SHUT_WR)
    status, output = json.loads(connection.makefile().read())
print(output)
sys.exit(status)
"""


class Engine:
    """What `docker` is asked for, with processes for containers.

    Attributes
    ----------
    ports : of the replicas, in the order in which they start.
    running : replicas by id, the oldest first.
    asked : the commands.
    serves : whether the replicas are services, or processes that do nothing.
    health : what Docker says of each replica, the next first; the last stays. If it is `GONE`,
        Docker does not know the replica.
    ends : what Docker says of a new replica at the end.
    old_bundle : whether the check of the bundle fails.
    """

    def __init__(self, root: Path, folder: Path, ports: list[int]) -> None:
        self._root, self._folder, self.ports = root, folder, ports
        self._stack = ExitStack()
        self.running: dict[str, Process] = {}
        self.health: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.ends = "healthy"
        self.serves = self.old_bundle = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        program = folder / "docker"
        port = self._listener.getsockname()[1]
        program.write_text(STAND_IN.format(python=sys.executable, port=port), encoding="utf-8")
        program.chmod(0o700)
        self._thread = threading.Thread(target=self._answer_all)
        self._thread.start()

    def close(self) -> None:
        """End the replicas."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._stack.close()

    def start(self, n: int) -> None:
        """Start replicas until there are ``n``."""
        while len(self.running) < n:
            number = len(list(self._folder.glob("log-*")))
            log = self._folder / f"log-{number}"
            if not self.serves:
                sleeper = Process(["sleep", "600"], log, os.environ)
                self.running[f"replica-{number}"] = self._stack.enter_context(sleeper)
                continue
            settings = {"VOUCH_TRUSTED_PROXIES": "127.0.0.1", "VOUCH_ANONYMOUS": "true"}
            settings["VOUCH_DRAIN_S"] = "5"  # as in the image
            service = Service(self._root, log, settings, port=self.ports[number])
            self._stack.enter_context(service)
            self.running[f"replica-{number}"] = service

    def _answer_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                arguments = json.loads(connection.makefile().read())
                self.asked.append(" ".join(arguments))
                connection.sendall(json.dumps(self._carried_out(arguments)).encode())

    def _carried_out(self, arguments: list[str]) -> tuple[int, str]:
        status, output = 0, ""
        match arguments:
            case ["compose", "ps", "--quiet", "service"]:
                output = "\n".join(self.running)
            case ["compose", "run", "--rm", "operate", "upgrade", "/bundles", "--check"]:
                status = int(self.old_bundle)
            case ["compose", "up", *options, "--no-recreate", "--scale", scale, "service"]:
                old = set(self.running)
                self.start(int(scale.removeprefix("service=")))
                self.health |= {
                    one: ["starting", self.ends] for one in self.running if one not in old
                }
                waits_in_vain = any(health[-1] == "unhealthy" for health in self.health.values())
                status = int("--wait" in options and waits_in_vain)
            case ["inspect", "--format", "{{.RestartCount}} {{.State.Health.Status}}", replica]:
                health = self.health[replica]
                output = f"0 {health.pop(0) if len(health) > 1 else health[0]}"
                status = int(GONE in output)
            case ["logs", "--tail", _, replica]:
                output = f"said by {replica}"
                status = int(self.health[replica] == [GONE])
            case ["stop", replica]:
                self.running[replica].send(signal.SIGTERM)
                ended = self.running[replica].popen.wait(TIMEOUT_S)
                status = ended if self.serves else 0
            case ["rm", *_, replica]:
                self.running.pop(replica).kill()
            case _:
                raise AssertionError(arguments)
        return status, output


def configured(ports: list[int], front: int) -> str:
    """The shipped configuration, with these ports for the addresses that Docker resolves."""
    text = (DOCKER / "balancer.cfg").read_text(encoding="utf-8")
    text = text.replace("bind :8080", f"bind 127.0.0.1:{front}")

    def servers(template: re.Match[str]) -> str:
        options = template[1].replace("resolvers docker init-addr none", "")
        return "\n".join(f"  server s{port} 127.0.0.1:{port} {options}" for port in ports)

    return re.sub(r'  server-template \w+ \d+ "\$VOUCH_SERVICE"(.*)', servers, text)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    root = released("0.2.0", tmp_path)
    assert current_id(root) is not None
    made = Engine(root, tmp_path, [free_port() for _ in range(4)])
    try:
        yield made
    finally:
        made.close()


def roll(engine: Engine, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script with the stand-in for `docker`."""
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "SETTLE_S": "3"}
    return subprocess.run(
        [str(DOCKER / "roll.sh")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_roll_under_load_loses_no_request(engine: Engine, tmp_path: Path) -> None:
    engine.serves = True
    engine.start(2)
    old, front, ports = list(engine.running), free_port(), engine.ports
    file = tmp_path / "balancer.cfg"
    file.write_text(configured(ports, front), encoding="utf-8")
    image = bytes.fromhex(next(iter(json.loads((tmp_path / "bundles/answers.json").read_text()))))
    statuses, ends = Counter[int | str](), threading.Event()
    variables = {**os.environ, "VOUCH_TRUSTED_PROXY": "192.0.2.1", "VOUCH_SERVICE": "none:1"}

    def ask() -> None:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{front}", trust_env=False, timeout=TIMEOUT_S
        ) as client:
            while not ends.is_set():
                try:
                    statuses[client.post(SEARCH, content=image).status_code] += 1
                except httpx2.TransportError as error:
                    statuses[repr(error)] += 1
                time.sleep(0.01)

    with Process([str(HAPROXY), "-f", str(file)], tmp_path / "haproxy.log", variables) as balancer:
        with httpx2.Client(base_url=f"http://127.0.0.1:{front}", trust_env=False) as client:

            def is_ready() -> bool:
                try:
                    ready = client.get("/readyz").status_code == 200
                    # Reads and uploads have servers of their own in HAProxy.
                    return ready and client.post(SEARCH, content=image).status_code == 200
                except httpx2.TransportError:
                    return False

            wait_until(is_ready, balancer)
        # HAProxy assumes that all replicas are there, until it has seen that two have not started.
        down = [
            f"Server {one}/s{port} is DOWN" for one in ("reads", "service") for port in ports[2:]
        ]
        wait_until(lambda: all(line in balancer.printed() for line in down), balancer)
        callers = [threading.Thread(target=ask) for _ in range(3)]
        for caller in callers:
            caller.start()
        done = roll(engine, tmp_path)
        ends.set()
        for caller in callers:
            caller.join()
    assert done.returncode == 0, done.stderr
    assert set(statuses) == {200}, statuses
    assert statuses[200] > 100
    assert list(engine.running) == ["replica-2", "replica-3"]
    assert [one for one in engine.asked if one.startswith("stop")] == [f"stop {one}" for one in old]


def test_roll_to_replicas_that_do_not_start_leaves_the_old_ones(
    engine: Engine, tmp_path: Path
) -> None:
    engine.ends = "unhealthy"
    engine.start(2)
    done = roll(engine, tmp_path)
    assert done.returncode == 1
    assert "the old replicas continue" in done.stderr
    assert "said by replica-2" in done.stderr
    assert list(engine.running) == ["replica-0", "replica-1"]
    assert not any(one.startswith("stop") for one in engine.asked)


def test_roll_to_replicas_that_disappear_leaves_the_old_ones(
    engine: Engine, tmp_path: Path
) -> None:
    engine.ends = GONE
    engine.start(2)
    done = roll(engine, tmp_path)
    assert done.returncode == 1
    assert "the old replicas continue" in done.stderr
    assert list(engine.running) == ["replica-0", "replica-1"]


def test_roll_replaces_an_unhealthy_replica(engine: Engine, tmp_path: Path) -> None:
    engine.start(2)
    engine.health["replica-1"] = ["unhealthy"]
    done = roll(engine, tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(engine.running) == ["replica-2", "replica-3"]


def test_roll_with_an_old_bundle_starts_nothing(engine: Engine, tmp_path: Path) -> None:
    engine.old_bundle = True
    engine.start(2)
    done = roll(engine, tmp_path)
    assert done.returncode == 1
    assert "docker compose run --rm operate upgrade /bundles" in done.stderr
    assert not any(one.startswith("compose up") for one in engine.asked)
