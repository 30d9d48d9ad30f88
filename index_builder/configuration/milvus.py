"""The builder's access to Milvus: address from the configuration, token from the environment."""

from __future__ import annotations

import os

from model_store.gallery import MilvusAccess

TIMEOUT_S = 60.0
"""The builder has time."""


def milvus_access() -> MilvusAccess:
    """By ``VOUCH_MILVUS_URI`` in place of what a bundle names, and with ``VOUCH_MILVUS_TOKEN``.

    ``VOUCH_MILVUS_LOG`` is the database of the log of changes, as the service reads it.
    """
    uri, token, log = (
        os.environ.get(f"VOUCH_MILVUS_{name}") or None for name in ("URI", "TOKEN", "LOG")
    )
    return MilvusAccess(uri, token, TIMEOUT_S, log)
