"""The secret of a directory of bundles; its services use it to sign tokens.

It is stored in the directory, so that all services share it and a restart does not change it.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path

from model_store.bundles.directory import ACTIVATION_LOCK
from model_store.bundles.manifest import Manifest
from model_store.files import lock_between_processes, replacing

SECRET_FILE = ".secret"  # noqa: S105 - the name of the file that holds it
_N_BYTES = 32


def secret_of(root: Path | None, manifest: Manifest) -> bytes:
    """Return the secret of a directory of bundles; create it if there is none.

    If it cannot be written, or the bundle is served without its directory, the secret is derived
    from the manifest. Only readers of the bundle know that.
    """
    if root is not None:
        path = root / SECRET_FILE
        with suppress(OSError):
            if not path.exists():
                _make(path)
            found = path.read_bytes()
            if len(found) == _N_BYTES:
                return found
    return hashlib.sha256(b"vouch secret" + manifest.to_json()).digest()


def _make(path: Path) -> None:
    """Write a new secret atomically, unless another process has written one."""
    with lock_between_processes(path.with_name(ACTIVATION_LOCK)):
        if not path.exists():
            with replacing(path) as staged:
                staged.touch(0o600)
                staged.write_bytes(secrets.token_bytes(_N_BYTES))
