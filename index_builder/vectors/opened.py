"""Opens each file of a build once in a process.

All steps of a build use the same graphs, and starting a graph takes 0.1 s of CPU time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from model_store.encoder.onnx import OnnxEncoder

Opened = TypeVar("Opened")

MOST_OPEN = 4
"""Maximum number of open files: the source, the trunk, the head and the encoder of a build."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a file; a renamed file is still the same version."""

    path: Path = field(compare=False)
    of_content: tuple[int, ...]


def opened_once(opener: Callable[[Path], Opened], path: Path) -> Opened:
    """Return ``opener(path)``, or the result of an earlier call if the file is unchanged."""
    found = path.stat()
    version = _Version(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    result: Opened = _opened(opener, version)
    return result


def encoder_on_cpu(path: Path) -> OnnxEncoder:
    """Return the encoder in ``path``, for several threads that each encode whole batches."""
    return opened_once(_on_one_thread, path)


def _on_one_thread(path: Path) -> OnnxEncoder:
    return OnnxEncoder(path, "cpu", threads=1)


@lru_cache(maxsize=MOST_OPEN)
def _opened(opener: Callable[[Path], Any], version: _Version) -> Any:  # noqa: ANN401
    return opener(version.path)
