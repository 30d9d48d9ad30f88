"""A secret of a directory of bundles, with which its services sign what they hand out.

It lies in the directory, so that all services on it know the same and a restart changes nothing.
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
    """Return the secret of a directory of bundles, which is made where there is none.

    Where it cannot be written, and for a bundle that is served without its directory, it is made of
    the digests of the bundle's files, which only who has those files knows.
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
    """Write a new secret, unless another process is first: the same for all, and never half."""
    with lock_between_processes(path.with_name(ACTIVATION_LOCK)):
        if not path.exists():
            with replacing(path) as staged:
                staged.touch(0o600)
                staged.write_bytes(secrets.token_bytes(_N_BYTES))
