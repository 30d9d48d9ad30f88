"""The builder's access to Milvus: address from the configuration, token from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.addresses import require_no_user, split_address
from model_store.errors import ConfigError
from model_store.gallery import MilvusAccess
from model_store.processors import ProviderChoice

if TYPE_CHECKING:
    from model_store.bundles.bundle import Bundle

TIMEOUT_S = 60.0
"""Timeout of the builder in seconds, longer than the timeout of the service."""


def open_with_access(path: Path, provider: ProviderChoice = "cpu", threads: int = 0) -> Bundle:
    """Open the current bundle of ``path`` as `open_bundle` does, with access to its database."""
    from model_store.bundles.bundle import open_bundle  # noqa: PLC0415 - slow

    return open_bundle(path, provider, threads, milvus=database_access())


def database_access(named: str | None = None) -> MilvusAccess:
    """Return the access to Milvus from the environment and the configuration.

    The token ``VOUCH_MILVUS_TOKEN`` is sent only to an address that the operator has set.
    ``VOUCH_MILVUS_LOG`` is the database of the change log, as in the service.

    Parameters
    ----------
    named : address from the configuration; ``VOUCH_MILVUS_URI`` overrides this address.

    Raises
    ------
    ConfigError : a variable is not an address. The message does not contain the value, which may
        contain a password.
    """
    uri, token, log = (
        os.environ.get(f"VOUCH_MILVUS_{name}") or None for name in ("URI", "TOKEN", "LOG")
    )
    try:
        if uri is not None and "://" in uri:
            parts = split_address(uri, ("http", "https", "tcp", "unix"))
            require_no_user(parts, "VOUCH_MILVUS_TOKEN")
    except ValueError as error:
        raise ConfigError(f"VOUCH_MILVUS_URI {error}.") from None
    try:
        if log is not None:
            split_address(log, ("postgresql", "postgres"))
    except ValueError as error:
        raise ConfigError(f"VOUCH_MILVUS_LOG {error}.") from None
    return MilvusAccess(uri or named, token, TIMEOUT_S, log)
