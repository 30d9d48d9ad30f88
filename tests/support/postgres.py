"""A real PostgreSQL for tests."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def a_postgres() -> Iterator[str]:
    """The address of one; it has ended afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of where it keeps its socket
        import pgserver

    # Not in pytest's own folder: PostgreSQL runs as a user who may not look into that.
    with tempfile.TemporaryDirectory(prefix="vouch-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = pgserver.get_server(Path(folder) / "data")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
