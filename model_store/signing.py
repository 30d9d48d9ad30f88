"""Keys and signatures of Ed25519 (RFC 8032) for certificates and bundles."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from model_store.errors import SigningKeyError

ALGORITHM = "Ed25519"

_OWNER_ONLY, _READABLE = 0o600, 0o644


def new_key(path: Path) -> Path:
    """Write a new private key to ``path``, and its public key beside it; return the public path.

    Raises
    ------
    SigningKeyError : a file exists already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    public = path.with_name(f"{path.name}.pub")
    private_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public_text = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        _write_new(public, public_text, _READABLE)
        _write_new(path, private_text, _OWNER_ONLY)
    except FileExistsError as error:
        raise SigningKeyError(
            f"The file {error.filename} already exists, and its key may have signed something. "
            "Give another file name."
        ) from error
    except OSError as error:
        raise SigningKeyError(f"The key cannot be written: {error}.") from error
    return public


def _write_new(path: Path, text: bytes, mode: int) -> None:
    """Create a new file; it has the permissions ``mode`` before it has content."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key that `new_key` has written.

    Raises
    ------
    SigningKeyError : there is none.
    """
    key = _read(path, partial(load_pem_private_key, password=None), "private")
    if not isinstance(key, Ed25519PrivateKey):
        raise _of_another_algorithm(path)
    return key


def read_public_key(path: Path) -> str:
    """Read a public key; return the key in hexadecimal, as in `sign`.

    Raises
    ------
    SigningKeyError : there is none.
    """
    key = _read(path, load_pem_public_key, "public")
    if not isinstance(key, Ed25519PublicKey):
        raise _of_another_algorithm(path)
    return key.public_bytes_raw().hex()


def _read(path: Path, load: Callable[[bytes], object], kind: str) -> object:
    """Read a key of any algorithm."""
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise SigningKeyError(
            f"{path} is no {kind} key ({error}). `vouch-build certify --new-key FILE` writes a "
            "private key to FILE, and its public key to FILE.pub."
        ) from error


def _of_another_algorithm(path: Path) -> SigningKeyError:
    return SigningKeyError(f"{path} is a key of another algorithm. Give an {ALGORITHM} key.")


def sign(content: bytes, key: Ed25519PrivateKey) -> dict[str, str]:
    """Return the signature of ``content``: algorithm, public key and signature, in hexadecimal."""
    return {
        "algorithm": ALGORITHM,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(content).hex(),
    }


def is_signature(content: bytes, public_key: str, signed: str) -> bool:
    """Return whether ``signed`` is the signature of ``content``, both in hexadecimal."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signed), content)
    except (InvalidSignature, ValueError):
        return False
    return True
