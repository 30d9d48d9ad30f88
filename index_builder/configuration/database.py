"""The builder's access to a gallery in a database; variables precede the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model_store.gallery.opening import DatabaseAccess
from model_store.processors import ProviderChoice

if TYPE_CHECKING:
    from model_store.bundles.bundle import Bundle

TIMEOUT_S = 60.0
"""Timeout of the builder in seconds, longer than the timeout of the service."""


def open_with_access(path: Path, provider: ProviderChoice = "cpu", threads: int = 0) -> Bundle:
    """Open the current bundle of ``path`` as `open_bundle` does, with access to its database."""
    from model_store.bundles.bundle import open_bundle  # noqa: PLC0415 - slow
    from model_store.encoder.onnx import OnnxEncoder  # noqa: PLC0415

    return open_bundle(path, provider, threads, OnnxEncoder, database_access())


def database_access(named: str | None = None) -> DatabaseAccess:
    """Return the access from the environment; ``named`` is the address from the configuration.

    Raises
    ------
    ConfigError : a variable of the environment is not an address.
    """
    return DatabaseAccess.of_environment(named, TIMEOUT_S)
