"""A good caller beside one that floods: how many of its searches are answered, and how late.

Each flood stands between two times in which the good caller is alone, and is compared with these:
what else is at work on the machine is at work in all of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np

from tests.end_to_end.keys import KeysFile
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.questions import unseen
from tests.end_to_end.replicas import thumbnails
from tests.torture.floods import FLOODS, client_of
from tests.torture.outcome import Outcome, Place
from tests.torture.worst_requests import GALLERY

ROOT = Path(__file__).parents[2]

FEWEST_ANSWERED = 0.95
MOST_TIMES_AS_LATE = 3.0
FEWEST_ASKED = 20
UNDER_WAY_S = 1.0
"""For which a flood has the service to itself."""

Asked = list[tuple[int, float]]
"""Statuses of searches, 0 where there was no answer, and the seconds that each took."""


def searches(client: httpx2.Client, pictures: Sequence[bytes], seconds: float) -> Asked:
    """Search with pictures that the service has not seen, one after the other."""
    asked: Asked = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(asked) < FEWEST_ASKED:
        image = unseen(pictures[len(asked) % len(pictures)])
        began = time.perf_counter()
        try:
            status = client.post(f"{GALLERY}/search/raw", content=image).status_code
        except httpx2.TransportError:
            status = 0
        asked.append((status, time.perf_counter() - began))
    return asked


@contextmanager
def flooding(url: str, key: str, kind: str, seconds: float) -> Iterator[list[int]]:
    """A flood that goes on for at least so long; in the end, of how many requests."""
    n_sent: list[int] = []
    command = [sys.executable, "-m", "tests.torture.floods", url, key, kind]
    command.append(f"{UNDER_WAY_S + seconds:g}")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdout.readline() != "begun\n":
            raise RuntimeError("the flood has not begun")
        time.sleep(UNDER_WAY_S)
        try:
            yield n_sent
        finally:
            n_sent.append(int(process.stdout.readline()))
            process.wait(timeout=TIMEOUT_S)


def answered(asked: Asked) -> list[float]:
    """The seconds of those that were answered."""
    return [seconds for status, seconds in asked if status == httpx2.codes.OK]


def p95(seconds: Sequence[float]) -> float:
    """The 95th percentile; infinite of nothing."""
    return float(np.quantile(seconds, 0.95, method="higher")) if seconds else float("inf")


def attack(
    place: Place, seconds: float, seed: int, kinds: Sequence[str] = tuple(FLOODS)
) -> Outcome:
    """Flood in one way after the other, and have a good caller search meanwhile."""
    outcome = Outcome()
    keys = KeysFile(place.folder / "keys.json")
    flood, good = (keys.make("read", name=name) for name in ("flood", "good"))
    settings = {
        "VOUCH_KEYS": str(keys.path),
        "VOUCH_CACHE_BYTES": "0",
        "VOUCH_DECODERS": "3",  # of which one caller gets two
    }
    pictures = thumbnails(place.bundle, 20, seed)
    for_each = seconds / (2 * len(kinds) + 1)
    with (
        Service(place.bundle, place.folder / "service.log", settings) as service,
        client_of(str(service.http.base_url), good) as client,
    ):
        searches(client, pictures, for_each / 2)  # what is done for the first time takes longer
        before = answered(searches(client, pictures, for_each))
        for kind in np.random.default_rng(seed).permutation(kinds).tolist():
            with flooding(str(service.http.base_url), flood, kind, for_each) as n_sent:
                asked = searches(client, pictures, for_each)
            after = answered(searches(client, pictures, for_each))
            outcome.n += len(asked)
            outcome.figures[kind] = compared(asked, before + after) | {"flood": n_sent[0]}
            outcome.violations += [f"{kind}: {why}" for why in missed(outcome.figures[kind])]
            before = after
    return outcome


def compared(asked: Asked, alone: Sequence[float]) -> dict[str, float]:
    """What a good caller got beside a flood, and alone."""
    got = answered(asked)
    return {
        "asked": len(asked),
        "answered": round(len(got) / len(asked), 4),
        "p95_s": round(p95(got), 4),
        "alone_p95_s": round(p95(alone), 4),
        "times_as_late": round(p95(got) / p95(alone), 2),
    }


def missed(found: dict[str, float]) -> list[str]:
    """What a good caller should have got."""
    violations = []
    if found["answered"] < FEWEST_ANSWERED:
        violations.append(f"{found['answered']:.1%} of another caller's searches answered")
    if found["times_as_late"] > MOST_TIMES_AS_LATE:
        violations.append(f"answers take {found['times_as_late']:.1f} times as long as alone (p95)")
    return violations
