"""The builder's access to Milvus: address from the configuration, token from the environment."""

from __future__ import annotations

import os

from model_store.gallery import MilvusAccess

TIMEOUT_S = 60.0
"""The builder has time."""


def milvus_access(named: str | None = None) -> MilvusAccess:
    """Return the access to Milvus that the environment and the configuration describe.

    The token in ``VOUCH_MILVUS_TOKEN`` is sent only to an address that the operator named.
    ``VOUCH_MILVUS_LOG`` is the database of the log of changes, as the service reads it.

    Parameters
    ----------
    named : the address in the configuration, without ``VOUCH_MILVUS_URI``.
    """
    uri, token, log = (
        os.environ.get(f"VOUCH_MILVUS_{name}") or None for name in ("URI", "TOKEN", "LOG")
    )
    return MilvusAccess(uri or named, token, TIMEOUT_S, log)
