"""A real S3 server, SeaweedFS, in a process of its own."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import obstore
from obstore.store import S3Store

BUCKET = "photographs"
KEY, SECRET = "an-access-key", "a-secret-that-nobody-may-read"
WEED = Path(sysconfig.get_path("scripts")) / "weed"


@dataclass(frozen=True)
class S3Server:
    """Where it is, and what opens it.

    Attributes
    ----------
    url : of the server.
    """

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What an owner would set."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    def store(self, bucket: str = BUCKET) -> S3Store:
        """A client of the tests' own."""
        return S3Store(
            bucket,
            endpoint=self.url,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},  # or it would try for minutes
        )

    def put_folder(self, folder: Path, prefix: str, bucket: str = BUCKET) -> None:
        """Upload all files below ``folder``."""
        store = self.store(bucket)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                obstore.put(store, f"{prefix}/{name}", path.read_bytes())

    def make_bucket(self, bucket: str) -> int:
        """Make a bucket; the status of the answer."""
        url = obstore.sign(self.store(bucket), "PUT", "", dt.timedelta(hours=1))
        return httpx2.put(url).status_code

    def remove_bucket(self, bucket: str) -> None:
        """Remove a bucket with all that is in it."""
        store = self.store(bucket)
        for page in obstore.list(store):
            obstore.delete(store, [one["path"] for one in page])
        url = obstore.sign(store, "DELETE", "", dt.timedelta(hours=1))
        assert httpx2.delete(url).status_code == 204


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Serve an empty bucket `BUCKET`, from files in ``folder``."""
    ports = free_ports(8)
    names = "master.port master.port.grpc volume.port volume.port.grpc filer.port filer.port.grpc"
    flags = [
        f"-{name}={port}"
        for name, port in zip([*names.split(), "s3.port", "s3.port.grpc"], ports, strict=True)
    ]
    server = S3Server(f"http://127.0.0.1:{ports[6]}")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                WEED, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer",
                "-s3", "-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
                "-s3.port.iceberg=0", "-s3.port.lance=0",
                *flags,
            ],
            env={**os.environ, **server.environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _wait_for(server)
        yield server
    finally:
        process.kill()  # told to end, it would wait for connections that are kept
        process.wait()


def _wait_for(server: S3Server) -> None:
    """Until the bucket is made, and takes a file: its parts find each other after a while."""
    for _ in range(600):
        try:
            if server.make_bucket(BUCKET) == 200:
                for number in range(5):  # one volume may be ready before another
                    obstore.put(server.store(), f"first/{number}", b"1")
                    obstore.delete(server.store(), f"first/{number}")
                return
        except (httpx2.TransportError, obstore.exceptions.BaseError):
            pass
        time.sleep(0.1)
    raise TimeoutError("SeaweedFS does not answer.")


def free_ports(n: int) -> list[int]:
    """Ports of this machine that nobody listens at."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
