"""Kill -9 at random moments, and nothing of the work is lost or mixed up.

An indexing of real drawings is killed with all its processes, at a moment drawn uniformly over the
time that an uninterrupted one takes, and started again until it ends by itself. Each must end with
the bundle that was made without interruption, and leave no process behind.

    python -m tests.torture.crash_indexing BUNDLE [KILLS]
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from model_store.bundles.manifest import read_manifest
from tests.support.collection_files import write_drawings
from tests.support.waiting import wait_until

N_IMAGES = 1797
N_BAD = 9
"""Half a percent, so that the quarantine report has to come out right as well."""


@dataclass(frozen=True, slots=True)
class Command:
    """An indexing in a directory of its own."""

    source: Path
    encoder: Path
    place: Path
    options: tuple[str, ...] = ()

    def start(self) -> subprocess.Popen[bytes]:
        """Begin, or go on, in a group of processes of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "index_builder", "index", self.source, "--encoder", self.encoder,
             "--name", "crash", "--provider", "cpu", "--workers", "2", *self.options],
            cwd=self.place,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self) -> None:
        """Let it end by itself."""
        process = self.start()
        _, said = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(said.decode())

    def made(self) -> tuple[str, str]:
        """Id of the bundle, every byte of which is as its manifest says; the quarantine report."""
        root = self.place / "bundles" / "crash"
        name = (root / "CURRENT").read_text(encoding="ascii").strip()
        read_manifest(root / name)
        return name, (self.place / "runs/crash/index/quarantine.jsonl").read_text(encoding="utf-8")


def kill_once(command: Command, come: Callable[[], object]) -> bool:
    """Start, kill the process alone once a moment has ``come``; whether it was still at work."""
    process = command.start()
    wait_until(lambda: come() or process.poll() is not None)
    alive = process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True) if alive else []
    process.kill()
    process.communicate()
    _, left = psutil.wait_procs(children, timeout=20)
    if left:
        raise RuntimeError(f"{left} outlived the indexer")
    return alive


def prepare(folder: Path, n_images: int = N_IMAGES) -> None:
    """Drawings, and a few files that cannot be read."""
    folder.mkdir()
    write_drawings(folder, n_images)
    for number in range(N_BAD):
        (folder / "1" / f"bad{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")


def main() -> None:
    """Kill as often as asked, say how it went."""
    bundle, n_kills = Path(sys.argv[1]).resolve(), int((*sys.argv, "50")[2])
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "drawings"
        prepare(source)
        first = Command(source, bundle, Path(scratch) / "whole")
        first.place.mkdir()
        started = time.perf_counter()
        first.finish()
        seconds = time.perf_counter() - started
        wanted = first.made()
        print(f"uninterrupted: {seconds:.1f} s, bundle {wanted[0]}", flush=True)
        done = in_work = runs = 0
        while done < n_kills:
            command = Command(source, bundle, Path(scratch) / f"run-{runs}")
            command.place.mkdir()
            for _ in range(min(rng.randint(1, 3), n_kills - done)):
                moment = time.monotonic() + rng.uniform(0, seconds)
                in_work += kill_once(command, lambda at=moment: time.monotonic() > at)  # type: ignore[misc]
                done += 1
            command.finish()
            if command.made() != wanted:
                raise SystemExit(f"after {done} kills: {command.made()}, wanted {wanted}")
            runs += 1
            print(
                f"{done} kills, {in_work} of them at work; {runs} runs ended the same", flush=True
            )


if __name__ == "__main__":
    main()
