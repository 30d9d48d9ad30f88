"""The service's memory while very many hostile connections are held.

Memory may grow by `MOST_GROWN`: what the service holds of large bodies, and so much for each
connection. Growth is measured after some searches, by each process's own peak (`VmHWM`): processes
do not peak at the same moment, so this is rather too much than too little.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from service.http.limits import HELD_BODIES_BYTES
from tests.end_to_end.processes import TIMEOUT_S, VOUCH_SERVE, Service
from tests.end_to_end.questions import unseen
from tests.end_to_end.replicas import thumbnails
from tests.torture.holding import KINDS
from tests.torture.outcome import Outcome, Place
from tests.torture.worst_requests import N_CONNECTIONS

ROOT = Path(__file__).parents[2]

CONNECTION_BYTES = 24 * 2**10
"""Bytes for each connection beside its body: its head, and objects of server and event loop."""
MOST_GROWN = HELD_BODIES_BYTES + N_CONNECTIONS * CONNECTION_BYTES
SHORTEST_S = 6.0
N_SEARCHES = 50
FORGET_PEAK = "5"
"""Written to `clear_refs`: the peak is counted anew."""

Memory = Mapping[int, Mapping[str, int]]
"""Of the processes of a service by their ids, what `/proc` says in kB."""


def memory_of(service: Service) -> Memory:
    """What `/proc` says of the memory of a service's processes."""
    return {pid: _read(pid, "status") | _read(pid, "smaps_rollup") for pid in _pids(service)}


def forget_peaks(service: Service) -> None:
    """Count the peaks anew."""
    for pid in _pids(service):
        Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK, encoding="ascii")


def _pids(service: Service) -> list[int]:
    main = psutil.Process(service.popen.pid)
    return [main.pid, *(child.pid for child in main.children(recursive=True))]


def _read(pid: int, file: str) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in named}


def _held(kind: str, service: Service, seconds: float) -> dict[str, float]:
    """Return how many connections were held, and how much memory grew."""
    before = memory_of(service)
    forget_peaks(service)
    command = [sys.executable, "-m", "tests.torture.holding", str(service.port), kind, f"{seconds}"]
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    service.require_running()
    after = memory_of(service)
    idle = sum(process["Pss"] for process in before.values())
    grown = sum(process["VmHWM"] for process in after.values())
    grown -= sum(process["VmRSS"] for process in before.values())
    connections, most = map(int, told.stdout.split())
    return {
        "connections": connections,
        "held_at_once": most,
        "idle_mib": round(idle / 1024, 1),
        "grown_mib": round(grown / 1024, 1),
        "of_allowed": round(grown * 1024 / MOST_GROWN, 3),
    }


def attack(place: Place, seconds: float, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Outcome:
    """Hold connections of one kind after the other, each time of a service just started."""
    outcome = Outcome()
    for_each = max(SHORTEST_S, seconds / len(kinds) - SHORTEST_S)
    pictures = thumbnails(place.bundle, 10, seed)
    for kind in np.random.default_rng(seed).permutation(kinds).tolist():
        with Service(place.bundle, place.folder / f"{kind}.log", command=VOUCH_SERVE) as service:
            for number in range(N_SEARCHES):
                service.answer(unseen(pictures[number % len(pictures)]))
            found = _held(kind, service, for_each)
        outcome.n += int(found["connections"])
        outcome.figures[kind] = found
        if found["of_allowed"] > 1:
            outcome.violations.append(f"{kind}: memory grew by {found['grown_mib']} MiB")
    return outcome
