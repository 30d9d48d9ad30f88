"""The key that the builder signs bundles with, from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from model_store.signing import read_private_key

SIGNING_KEY_VARIABLE = "VOUCH_SIGNING_KEY"


def signing_key() -> Ed25519PrivateKey | None:
    """Read the private key whose file ``VOUCH_SIGNING_KEY`` names; None where it names none.

    Raises
    ------
    SigningKeyError : there is no such key.
    """
    path = os.environ.get(SIGNING_KEY_VARIABLE)
    return read_private_key(Path(path)) if path else None
