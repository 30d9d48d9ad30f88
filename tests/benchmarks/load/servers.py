"""Servers on cores of their own: `vouch-serve`, and what one would write in its place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

FASTAPI = (sys.executable, "-m", "tests.benchmarks.load.plain_fastapi")
PLAIN = {f"plain_fastapi_{kind}": (*FASTAPI, kind) for kind in ("torch", "onnx")}
"""The commands that serve plainly."""

NOTHING_DONE = {"plain_fastapi_none": (*FASTAPI, "none")}
"""The command that takes images and answers without looking at them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs, and where it listens."""

    pid: int
    port: int


@contextmanager
def server(
    command: Sequence[str], core: int | str, ready: str, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server on ``core`` (or cores, as taskset has them), ready.

    Parameters
    ----------
    settings : beside those of `environment`; an empty one is left to its default.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pinned = ["taskset", "-c", str(core), *command, "--port", str(port)]
    variables = environment() | dict(settings or {})
    with subprocess.Popen(
        pinned, stderr=subprocess.DEVNULL, env=variables, start_new_session=True
    ) as process:
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}"):
                        break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError(f"{command} did not start") from None
                    time.sleep(0.05)
            yield Server(process.pid, port)
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # LitServe leaves its workers behind
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until_all_answer(target: Server, n: int) -> None:
    """Wait until ``n`` workers of a service answer."""
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/readyz") as answer:
            if json.load(answer)["processes"] == n:
                return
        time.sleep(0.1)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "VOUCH_PROVIDER": "cpu",
        "VOUCH_ENCODER_THREADS": "1",
        "VOUCH_CACHE_BYTES": "0",
        "OMP_NUM_THREADS": "1",
    }


def processor_seconds(pid: int) -> float:
    """Seconds of a processor that a process and its children have taken, says the kernel."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return float(sum(one.user + one.system for one in times))


def install_litserve(folder: Path) -> tuple[Path, str]:
    """LitServe and the core's dependencies, in an environment of their own.

    Returns
    -------
    its Python, and the version of LitServe.
    """
    uv, python = Path(sys.executable).with_name("uv"), folder / "bin/python"
    run = partial(subprocess.run, check=True, stdout=subprocess.PIPE, text=True)
    run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder])
    wanted = ["litserve", "python-multipart", "--requirements", "pyproject.toml"]
    run([uv, "pip", "install", "--quiet", "--python", python, *wanted])
    said = "from importlib.metadata import version; print(version('litserve'))"
    return python, str(run([python, "-c", said]).stdout.strip())
