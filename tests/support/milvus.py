"""Milvus for tests: milvus-lite in threads of this process, or the real server.

``VOUCH_TEST_MILVUS=server`` starts the server that PyPI's `milvus` carries, once a run; an address
in its place names one that runs already, whose collections of Vouch are dropped first.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from urllib.request import urlopen

from milvus_lite.server_manager import server_manager_instance
from pymilvus import MilvusClient

from model_store.gallery.milvus.collection import Collection, MilvusAccess
from model_store.gallery.milvus.writer import write_to_milvus
from tests.support.in_memory import from_memory

CHOSEN = os.environ.get("VOUCH_TEST_MILVUS", "")
IS_REAL = bool(CHOSEN)

START_S = 180
"""Seconds; ten on an idle machine."""


@contextmanager
def a_milvus(path: Path) -> Iterator[str]:
    """An address to write galleries to: the file at ``path``, unless the real server is chosen."""
    if IS_REAL:
        yield _real()
        return
    try:
        yield str(path)
    finally:
        server_manager_instance.release_server(str(path))


class MilvusServer:
    """The standalone server of PyPI's `milvus`, with its data in ``directory``.

    Attributes
    ----------
    uri : its address, the same after `start` has been called again.
    command, environment : to start it by, for those who do it themselves.

    Parameters
    ----------
    port : to listen at; None for any.
    session_s : seconds after which its parts think each other dead: on a busy machine they do not
        hear of each other for a while, and it would end; one that was killed does not start sooner.
    """

    def __init__(self, directory: Path, port: int | None = None, session_s: int = 300) -> None:
        import milvus
        from milvus import MilvusServerConfig

        self._directory = directory
        self._config = MilvusServerConfig(data_dir=str(directory))
        self._config.set("common.session.ttl", session_s)
        configured = directory / "configs" / "milvus.yaml"
        address = directory / "address"
        if not configured.exists():  # else it keeps its ports, though they may look taken yet
            for name, item in self._config.configurable_items.items():
                if name.endswith("_port"):
                    item[1] = _free_port()  # not those that another server just chooses
            self._config.resolve()
            if port is not None:
                self._config.set("proxy_port", port)
                self._config.write_config()
            address.write_text(f"http://127.0.0.1:{self._config.get('proxy_port')}")
        milvus._initialize_data_files(str(directory))
        self._health = _free_port()
        self._popen: subprocess.Popen[bytes] | None = None
        self.uri = address.read_text()
        self.command = ["sh", "-c", f"cd '{directory}' && exec bin/milvus run standalone"]
        self.environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._health),
            "ETCD_CONFIG_PATH": str(self._etcd_configuration()),
            "MILVUS_RUN_DIR": str(directory / "run"),
            "LD_LIBRARY_PATH": str(directory / "bin"),
        }

    def _etcd_configuration(self) -> Path:
        """Ports of its own for the etcd inside it: there may be another server."""
        peers, clients = _free_port(), self._config.get("etcd_port")
        urls = {
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
        }
        lines = [f"{name}: http://127.0.0.1:{port}" for name, port in urls.items()]
        path = self._directory / "etcd.yaml"
        # Those that it was first started with stay in its data.
        if not path.exists():
            lines.append(f"initial-cluster: default=http://127.0.0.1:{peers}")
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._directory / "server.log").open("ab") as log:
            self._popen = subprocess.Popen(
                self.command, env=self.environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not self.is_healthy():
            if self._popen.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"Milvus has not started, see {self._directory}")
            time.sleep(0.2)

    def is_healthy(self) -> bool:
        """Whether it says that all of it has started."""
        try:
            with urlopen(f"http://127.0.0.1:{self._health}/healthz", timeout=5) as answer:
                return bool(answer.read() == b"OK")
        except OSError:
            return False

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._popen is not None
        return self._popen.pid

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._popen is not None:
            self._popen.send_signal(signal.SIGKILL)
            self._popen.wait()
            self._popen = None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@cache
def _real() -> str:
    if CHOSEN.startswith("http"):
        _drop_collections(CHOSEN)
        return CHOSEN
    directory = Path(tempfile.mkdtemp(prefix="vouch-milvus-"))
    server = MilvusServer(directory)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.kill)
    server.start()
    return server.uri


def _drop_collections(uri: str) -> None:
    client = MilvusClient(uri)
    for name in client.list_collections():
        if name.startswith("vouch_"):
            with closing(Collection(name, MilvusAccess(uri))) as collection:
                collection.drop()  # with its aliases, which Milvus would keep
    client.close()


write_milvus_gallery = from_memory(write_to_milvus)
