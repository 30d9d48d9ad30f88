"""Keys and signatures of Ed25519 (RFC 8032), for certificates and bundles.

An id proves that a bundle is complete; a signature proves its publisher. The signature covers the
manifest and, through its digests, every file of the bundle. The signature is in a separate file, so
signing does not change the id of a bundle.

The secret of a gallery is stored in the directory. So all services share the secret, and a restart
does not change it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
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

from model_store.bundles.directory import ACTIVATION_LOCK, current_id
from model_store.bundles.manifest import SIGNATURE_FILE, Manifest
from model_store.errors import BundleUntrusted, PointerUnreadable, SigningKeyError, WriteRefused
from model_store.files import create, json_text, lock_between_processes, replacing

ALGORITHM = "Ed25519"

_OWNER_ONLY, _READABLE = 0o600, 0o644


def new_key(path: Path) -> Path:
    """Write a new private key to ``path``, and its public key beside it; return the public path.

    After an error, neither file is created.

    Raises
    ------
    SigningKeyError : a file exists already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    public = path.with_name(f"{path.name}.pub")
    private_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public_text = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        create(public, public_text, _READABLE)
        try:
            create(path, private_text, _OWNER_ONLY)
        except BaseException:
            public.unlink()  # a public key without its private key is of no use
            raise
    except FileExistsError as error:
        raise SigningKeyError(
            f"The file {error.filename} already exists, and its key may have signed something. "
            "Give another file name."
        ) from error
    except OSError as error:
        raise SigningKeyError(f"The key cannot be written: {error}.") from error
    return public


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


@dataclass(frozen=True)
class Signing:
    """How this process signs the bundles that it publishes.

    Attributes
    ----------
    key_file : file of the private key; None if there is no key.
    is_required : whether every bundle needs a signature, see ``VOUCH_BUNDLE_KEYS``.
    """

    key_file: Path | None = None
    is_required: bool = False

    def objection(self, root: Path | None = None) -> str | None:
        """Return why a new bundle needs a signature and cannot get it; None if nothing is wrong.

        An unsigned successor of a signed bundle would be an outage: services that require
        signatures do not open it.

        Parameters
        ----------
        root : directory of bundles in which the new bundle becomes current; None for a new one.
        """
        if self.key_file is not None:
            return None
        current = None if root is None else _current(root)
        if self.is_required:
            reason = "VOUCH_BUNDLE_KEYS requires signed bundles"
        elif current is not None and (current / SIGNATURE_FILE).exists():
            reason = f"the bundle {current.name} is signed"
        else:
            return None
        return (
            f"No bundle is published: {reason}, and there is no key to sign the new bundle. Set "
            "VOUCH_SIGNING_KEY to the file of the private key."
        )

    def key_for(self, root: Path) -> Ed25519PrivateKey | None:
        """Read the key that signs a new bundle in ``root``; None if it needs no signature.

        Raises
        ------
        WriteRefused : the bundle needs a signature, and there is no key; see `objection`.
        SigningKeyError : the key file is missing or invalid.
        """
        if (objection := self.objection(root)) is not None:
            raise WriteRefused(objection)
        return None if self.key_file is None else read_private_key(self.key_file)


UNSIGNED = Signing()
"""Signs nothing; a signed bundle gets no successor."""


def _current(root: Path) -> Path | None:
    """Return the directory of the current bundle; None without a bundle that can be found."""
    try:
        named = current_id(root)
    except PointerUnreadable:  # the new bundle's name replaces it
        return None
    return None if named is None else root / named


def write_signature(directory: Path, manifest: Manifest, key: Ed25519PrivateKey) -> None:
    """Sign the bundle of ``manifest``, and replace an earlier signature."""
    signed = json_text(sign(manifest.to_json(), key))
    with replacing(directory / SIGNATURE_FILE) as file:
        file.write_text(signed, encoding="utf-8")


def require_signature(directory: Path, manifest: Manifest, trusted: Collection[str]) -> None:
    """Raise an error unless a trusted key has signed the bundle.

    Parameters
    ----------
    trusted : public keys, see `read_public_key`.

    Raises
    ------
    BundleUntrusted : the signature is missing, is from an untrusted key, or signs another manifest.
    """
    try:
        signed = json.loads((directory / SIGNATURE_FILE).read_bytes())
        public_key, signature = str(signed["public_key"]), str(signed["signature"])
    except FileNotFoundError:
        raise _untrusted(manifest, "is not signed") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _untrusted(manifest, f"has a signature that cannot be read ({error})") from error
    if public_key not in trusted:
        raise _untrusted(manifest, f"is signed by a key that is not trusted, {public_key[:16]}…")
    if not is_signature(manifest.to_json(), public_key, signature):
        raise _untrusted(manifest, "has a signature of another manifest")


def _untrusted(manifest: Manifest, what: str) -> BundleUntrusted:
    return BundleUntrusted(
        f"The bundle {manifest.id} {what}. Sign it with `vouch-build sign`, or add the public key "
        "of its publisher to VOUCH_BUNDLE_KEYS."
    )


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
