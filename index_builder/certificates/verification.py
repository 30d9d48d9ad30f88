"""Compares a certificate with its bundle."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from index_builder.certificates.content import SCHEMA_VERSION, content, open_certified
from index_builder.certificates.files import Certificate, canonical, is_signed
from index_builder.certificates.since import Observed
from model_store.errors import BundleError

RELATIVE = 1e-9
"""Maximum relative difference of two numbers that count as equal. Releases of SciPy may differ in
the last digits."""


def differences(certificate: Certificate, bundle: Path, public_key: str | None = None) -> list[str]:
    """Return all differences between a certificate and its bundle, one per line.

    Parameters
    ----------
    bundle : the bundle, or a directory of bundles; from a directory, the current bundle is used.
    public_key : public key of the required signer, in hexadecimal. If None, the certificate can
        have any signer, or no signature.
    """
    return [*_of_signature(certificate, public_key), *_of_content(certificate.content, bundle)]


def _of_signature(certificate: Certificate, public_key: str | None) -> Iterator[str]:
    signed = certificate.signature
    if signed is None:
        if public_key is not None:
            yield "signature: the certificate is not signed"
        return
    if not is_signed(certificate.content, signed.public_key, signed.signature):
        yield "signature: it does not fit the content and the public key in the certificate"
    if public_key is not None and signed.public_key != public_key:
        yield f"signature: by the key {signed.public_key}, wanted {public_key}"


def _of_content(claimed: dict[str, Any], bundle: Path) -> Iterator[str]:
    if claimed.get("schema_version") != SCHEMA_VERSION:
        yield (
            f"schema_version: {claimed.get('schema_version')!r}, this release reads "
            f"{SCHEMA_VERSION}"
        )
        return
    try:
        day = date.fromisoformat(str(claimed.get("date")))
        claims = claimed.get("since")
        seen = None if claims is None else Observed.model_validate(claims["observed"])
    except (ValueError, ValidationError, KeyError, TypeError) as error:
        yield f"date or since: not readable ({error})"
        return
    try:
        computed = content(open_certified(bundle), day, seen)
    except BundleError as error:
        yield f"bundle: {error}"
        return
    yield from _compared(claimed, json.loads(canonical(computed)), "")


def _compared(claimed: Any, computed: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Compare two JSON values field by field."""
    if isinstance(claimed, dict) and isinstance(computed, dict):
        for key in sorted(claimed.keys() | computed.keys()):
            inner = f"{name}.{key}" if name else key
            if key not in computed:
                yield f"{inner}: only the certificate has this field"
            elif key not in claimed:
                yield f"{inner}: the certificate lacks this field"
            else:
                yield from _compared(claimed[key], computed[key], inner)
    elif isinstance(claimed, list) and isinstance(computed, list):
        if len(claimed) != len(computed):
            yield f"{name}: {len(claimed)} entries, the bundle gives {len(computed)}"
        for place, (one, other) in enumerate(zip(claimed, computed, strict=False)):
            yield from _compared(one, other, f"{name}[{place}]")
    elif not _equal(claimed, computed):
        yield f"{name}: the certificate says {claimed!r}, the bundle gives {computed!r}"


def _equal(claimed: Any, computed: Any) -> bool:  # noqa: ANN401 - any JSON
    if isinstance(claimed, float) and isinstance(computed, float):
        return math.isclose(claimed, computed, rel_tol=RELATIVE, abs_tol=1e-12)
    return type(claimed) is type(computed) and bool(claimed == computed)
