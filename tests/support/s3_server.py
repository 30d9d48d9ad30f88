"""A server of S3 in a process of its own: moto's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAOFTHETESTS",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """The URL of a running server, where moto is installed."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("moto_server", path=places)
    if program is None:
        pytest.skip("moto_server is not installed: there is no S3 to test with")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [program, "-H", "127.0.0.1", "-p", str(port)], stdout=file, stderr=file
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            httpx2.get(url)
        except httpx2.TransportError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("moto_server did not start")
