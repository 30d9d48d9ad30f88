"""Settings of the builder from the environment: signing, and access to a database."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.bundles.signatures import Signing, read_public_key
from model_store.errors import ConfigError, UsageError, VouchError, with_reason
from model_store.gallery.opening import ACCESS_VARIABLES, DatabaseAccess
from model_store.machine import ProviderChoice
from model_store.programs import PREFIX, misspelt_variables, variable
from model_store.text_values import passwords_in, split_list

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


def explained(error: VouchError) -> str:
    """Return an error's message with its reason, without passwords of the environment."""
    text = with_reason(error)
    for name in ACCESS_VARIABLES:
        value = ""
        with suppress(ConfigError):
            value = variable(PREFIX + name.upper()) or ""
        for secret in passwords_in(value) | ({value} if name.endswith("token") else set()):
            text = text.replace(secret, "…") if secret else text
    return text


SIGNING_KEY_VARIABLE = "VOUCH_SIGNING_KEY"
BUNDLE_KEYS_VARIABLE = "VOUCH_BUNDLE_KEYS"

READ_VARIABLES = (
    *("allowed_origins", "bundle_keys", "data_dir", "redis_url", "secrets_dir", "signing_key"),
    *ACCESS_VARIABLES,
)
"""The variables that commands read, without ``PREFIX``, in lower case."""

_OF_COMPOSE = {"VOUCH_BUNDLES"}
"""Variables of `docker-compose.yml` with names similar to `READ_VARIABLES`."""


def require_known_variables() -> None:
    """Raise an error if a variable is misspelt. A misspelt variable could accept any bundle.

    Raises
    ------
    UsageError : a ``VOUCH_*`` variable is misspelt.
    """
    misspelt = [
        f"{name}: is not a setting; did you mean {PREFIX}{meant.upper()}? Rename or unset it"
        for name, meant in misspelt_variables(os.environ.keys() - _OF_COMPOSE, READ_VARIABLES)
        if f"{PREFIX}{meant.upper()}" not in os.environ
    ]
    if misspelt:
        raise UsageError("; ".join(misspelt))


def signing() -> Signing:
    """Return how ``VOUCH_SIGNING_KEY`` and ``VOUCH_BUNDLE_KEYS`` say that bundles are signed."""
    key_file = os.environ.get(SIGNING_KEY_VARIABLE)
    return Signing(Path(key_file) if key_file else None, bool(os.environ.get(BUNDLE_KEYS_VARIABLE)))


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
