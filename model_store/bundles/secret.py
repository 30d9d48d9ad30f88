"""The secret of a directory of bundles; services sign tokens with this secret.

The secret is stored in the directory. So all services share the secret, and a restart does not
change it.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path

from model_store.bundles.directory import ACTIVATION_LOCK
from model_store.bundles.manifest import Manifest
from model_store.files import lock_between_processes, replacing

SECRET_FILE = ".secret"  # noqa: S105 - the name of the file, not the secret
_N_BYTES = 32


def secret_of(root: Path | None, manifest: Manifest) -> bytes:
    """Return the secret of a directory of bundles; create a secret if there is none.

    If no secret can be written, or ``root`` is None, the secret is derived from the manifest. Only
    a process that can read the bundle knows the manifest.
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
    """Write a new secret atomically, unless another process has written a secret."""
    with lock_between_processes(path.with_name(ACTIVATION_LOCK)):
        if not path.exists():
            with replacing(path) as staged:
                staged.touch(0o600)
                staged.write_bytes(secrets.token_bytes(_N_BYTES))
