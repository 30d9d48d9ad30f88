"""Galleries that are written to by several services, which are killed, compacted and exchanged."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from model_store.bundles.directory import activate
from tests.end_to_end.replicas import Replicas
from tests.end_to_end.writes import CrashTest
from tests.torture.outcome import Outcome, Place

SECONDS_OF_A_KILL = 12.0


def _directory_of(place: Place) -> Path:
    root = place.folder / "bundles"
    shutil.copytree(place.bundle, root / place.bundle.name)
    activate(root, place.bundle.name)
    return root


def attack_histories(place: Place, seconds: float, seed: int) -> Outcome:
    """Have clients write to two services, and look for an order that explains every answer."""
    log = place.folder / "service.log"
    replicas = Replicas(_directory_of(place), place.bundle, log, seed)
    replicas.run(seconds, compact_every_s=4, kill_every_s=30, swap_every_s=10)
    wrong = [f"{item}: no order explains {one}" for item, one in replicas.violations()]
    return Outcome(replicas.n_operations, wrong, dict(sorted(replicas.counts.items())))


def attack_writes(place: Place, seconds: float, seed: int) -> Outcome:
    """Kill a service while it is written to; what it has acknowledged must be there."""
    log = place.folder / "service.log"
    crash, outcome = CrashTest(_directory_of(place), place.bundle, log, seed=seed), Outcome()
    began = time.monotonic()
    try:
        crash.run(max(1, int(seconds / SECONDS_OF_A_KILL)))
    except AssertionError as error:
        outcome.violations.append(f"after {crash.counts['kills']} kills: {error}")
    outcome.n = crash.counts["kills"]
    outcome.figures |= {**dict(sorted(crash.counts.items())), "s": time.monotonic() - began}
    return outcome
