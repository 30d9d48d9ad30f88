"""The builder's signing key and trusted public keys, from the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from model_store.errors import ConfigError
from model_store.lists import split_list
from model_store.signing import read_private_key, read_public_key

SIGNING_KEY_VARIABLE = "VOUCH_SIGNING_KEY"
BUNDLE_KEYS_VARIABLE = "VOUCH_BUNDLE_KEYS"


def signing_key() -> Ed25519PrivateKey | None:
    """Read the private key from the file in ``VOUCH_SIGNING_KEY``; None if the variable is not set.

    Raises
    ------
    SigningKeyError : a key file is missing or invalid.
    """
    path = os.environ.get(SIGNING_KEY_VARIABLE)
    return read_private_key(Path(path)) if path else None


def trusted_keys(named: Sequence[Path] = ()) -> list[str]:
    """Read the public keys from the files ``named``, or from the files in ``VOUCH_BUNDLE_KEYS``.

    Raises
    ------
    ConfigError : the variable is not a list of files.
    SigningKeyError : a key file is missing or invalid.
    """
    text = os.environ.get(BUNDLE_KEYS_VARIABLE)
    if named or not text:
        return [read_public_key(file) for file in named]
    try:
        files = split_list(text)
    except ValueError as error:
        raise ConfigError(
            f"{BUNDLE_KEYS_VARIABLE} is {text[:200]!r}. Give files of public keys, separated by "
            "commas, for example publisher.pub,archive.pub."
        ) from error
    return [read_public_key(Path(file)) for file in files]
