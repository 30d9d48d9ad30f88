"""Milvus for tests: milvus-lite, which serves a file from threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milvus_lite.server_manager import server_manager_instance


@contextmanager
def lite_file(path: Path) -> Iterator[str]:
    """An address to write galleries to; what serves it has ended afterwards."""
    try:
        yield str(path)
    finally:
        server_manager_instance.release_server(str(path))
