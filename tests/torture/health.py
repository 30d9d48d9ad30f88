"""`/livez` while one client sends the worst request of each kind.

Health is asked for by another client, of another address, at a rate that does not wait for answers,
on a new connection each time. Attackers and others are at work on the same cores: by how much that
slows the service down, the kernel says, which counts for how long it was ready to run and was not.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.end_to_end.fronts import Front
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.torture.outcome import Outcome, Place
from tests.torture.worst_requests import CROWDS, OTHERS

HERE = Path(__file__).parent

PROBES_PER_S = 40.0
SHORTEST_S = 2.0
MOST_S = 0.25
"""For the 99th percentile on a core of its own; in proportion more where it waits for one."""

MOST_SLOWED_DOWN = 4.0
"""Beyond it nothing is judged: connections are not even accepted in time."""

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
OTHER_CLIENT = ("127.0.0.2", 0)


async def _probe(port: int) -> float:
    """Seconds from connecting to the answer."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=OTHER_CLIENT)
    try:
        writer.write(LIVEZ)
        answer = await reader.read()
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"/livez answered {answer[:100]!r}")
    return time.perf_counter() - began


async def _probes(port: int, seconds: float) -> list[float]:
    """Seconds that every probe took; infinitely many where none was answered."""

    async def one(number: int) -> float:
        await asyncio.sleep(number / PROBES_PER_S)
        try:
            return await asyncio.wait_for(_probe(port), TIMEOUT_S)
        except (OSError, TimeoutError):
            return float("inf")

    return list(await asyncio.gather(*map(one, range(int(seconds * PROBES_PER_S)))))


def _run_and_waited(service: Service) -> tuple[int, int]:
    """Nanoseconds that the event loop ran, and that it waited for a core."""
    told = Path(f"/proc/{service.popen.pid}/schedstat").read_text(encoding="ascii").split()
    return int(told[0]), int(told[1])


def attack_proxy(place: Place, seconds: float, seed: int) -> Outcome:
    """Crowd the shipped HAProxy, and see how long `/livez` of the service behind it takes."""
    return attack(place, seconds, seed, CROWDS, "shipped HAProxy")


async def _until_ready(port: int) -> None:
    """Wait until the proxy has seen that the service is ready."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            await _probe(port)
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
        else:
            return


def _under(kind: str, service: Service, port: int, seconds: float) -> dict[str, float]:
    """What probes took under an attack, and how many requests that was."""
    command = [
        sys.executable,
        str(HERE / "worst_requests.py"),
        str(port),
        kind,
        f"{seconds + 1}",
    ]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    ran_before, waited_before = _run_and_waited(service)
    took = asyncio.run(_probes(port, seconds))
    ran, waited = _run_and_waited(service)
    said, _ = attacker.communicate(timeout=TIMEOUT_S)
    service.require_running()
    return {
        "requests": int(said),
        "unanswered": took.count(float("inf")),
        "p50_s": _quantile(took, 0.5),
        "p99_s": _quantile(took, 0.99),
        "max_s": _quantile(took, 1),
        "slowed_down": round(1 + (waited - waited_before) / max(1, ran - ran_before), 2),
    }


def _quantile(seconds: list[float], share: float) -> float:
    return round(float(np.quantile(seconds, share, method="higher")), 4)


def is_late(found: Mapping[str, float], most_s: float) -> bool:
    """Whether `/livez` took too long, and not because others had the cores."""
    slowed_down = found["slowed_down"]
    return slowed_down < MOST_SLOWED_DOWN and found["p99_s"] > most_s * slowed_down


def attack(
    place: Place,
    seconds: float,
    seed: int,
    kinds: Sequence[str] = OTHERS,
    front: str | None = None,
) -> Outcome:
    """Send requests of one kind after the other, and see how long `/livez` takes meanwhile.

    Parameters
    ----------
    front : name of a proxy in front of the service, of `tests.end_to_end.fronts`.
    """
    outcome = Outcome()
    for_each = max(SHORTEST_S, seconds / len(kinds) - 1)
    settings = {"VOUCH_TRUSTED_PROXIES": "127.0.0.1", "VOUCH_ANONYMOUS": "true"} if front else {}
    with ExitStack() as stack:
        log = place.folder / "service.log"
        service = stack.enter_context(Service(place.bundle, log, settings))
        port = service.port
        if front is not None:
            port = stack.enter_context(Front(front, [port], place.folder)).port
            asyncio.run(_until_ready(port))
        for kind in np.random.default_rng(seed).permutation(kinds).tolist():
            found = _under(kind, service, port, for_each)
            outcome.n += int(found["requests"])
            outcome.figures[kind] = found
            if found["unanswered"]:
                outcome.violations.append(f"{kind}: {found['unanswered']} of /livez not answered")
            elif is_late(found, MOST_S):
                outcome.violations.append(f"{kind}: /livez took {found['p99_s']:.2f} s (p99)")
    return outcome
