"""A module that holds a mutant for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path


@contextmanager
def written(path: Path, source: str) -> Iterator[None]:
    """Write a mutant into its file; put back what was there at the end."""
    as_it_is = path.read_text("utf-8")
    try:
        _write(path, source)
        yield
    finally:
        _write(path, as_it_is)


def _write(path: Path, source: str) -> None:
    """Write a module, and forget how it was compiled."""
    path.write_text(source, "utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)
