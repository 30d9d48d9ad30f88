"""Canonical JSON of a certificate, and its signature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from model_store.signing import is_signature, sign


def canonical(value: Mapping[str, Any]) -> bytes:
    """Return the JSON to sign: sorted keys, no spaces, UTF-8. Raises ValueError for NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def signature(value: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, str]:
    """Sign the canonical JSON of ``value``."""
    return sign(canonical(value), key)


def is_signed(value: Mapping[str, Any], public_key: str, signed: str) -> bool:
    """Return whether ``signed`` is the signature of ``value``, both in hexadecimal."""
    return is_signature(canonical(value), public_key, signed)
