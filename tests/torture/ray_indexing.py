"""A Ray of several workers, one of which is killed, makes the same bundle.

Real drawings are indexed by the local engine, then by Ray Data on this machine; while that works,
one of its workers is killed with SIGKILL, and a decoder of another.

    python -m tests.torture.ray_indexing BUNDLE
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.torture.crash_indexing import Command, prepare


def workers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Processes of Ray's that embed."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cmdline()[0].startswith("ray::") and "_Worker" in child.cmdline()[0]:
                found.append(child)
        except (psutil.Error, IndexError):  # it has ended meanwhile
            continue
    return found


def kill_at_work(process: subprocess.Popen[bytes]) -> int:
    """Kill a worker, then what another one has started, once they work; how many were killed."""
    killed = 0
    while process.poll() is None and killed < 2:
        decoding = [(one, one.children()) for one in workers(process)]
        busy = [(one, children) for one, children in decoding if children]
        if busy:
            victim = busy[0][0] if killed == 0 else busy[-1][1][-1]
            victim.send_signal(signal.SIGKILL)
            killed += 1
            time.sleep(1)
        time.sleep(0.05)
    return killed


def main() -> None:
    """Compare, and say so."""
    bundle = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "drawings"
        prepare(source)
        local = Command(source, bundle, Path(scratch) / "local")
        local.place.mkdir()
        local.finish()
        on_ray = Command(source, bundle, Path(scratch) / "ray", ("--engine", "ray"))
        on_ray.place.mkdir()
        process = on_ray.start()
        killed = kill_at_work(process)
        _, said = process.communicate()
        if process.returncode != 0:
            raise SystemExit(said.decode())
        if on_ray.made() != local.made():
            raise SystemExit(f"Ray made {on_ray.made()[0]}, one process {local.made()[0]}")
        print(f"the same bundle {local.made()[0]} by Ray, {killed} of its processes killed")


if __name__ == "__main__":
    main()
