"""Writes and reads the files of a certificate, and compares a certificate with its bundle.

The page is printable HTML without scripts or external files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, ValidationError

from index_builder.certificates.content import SCHEMA_VERSION, Observed, content, open_certified
from index_builder.output import replacing_output, templates_of
from model_store.bundles.signatures import is_signature, sign
from model_store.errors import BundleError, CertificateError
from model_store.files import json_text
from vouch_search import plots

CERTIFICATE_FILE = "certificate.json"
PAGE_FILE = "certificate.html"


class Signature(BaseModel):
    """A signature of the canonical JSON of the content; key and signature in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    algorithm: Literal["Ed25519"]
    public_key: str
    signature: str


class Certificate(BaseModel):
    """A stored certificate.

    Attributes
    ----------
    content : see `index_builder.certificates.content`.
    signature : None if unsigned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    content: dict[str, Any]
    signature: Signature | None

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        return json_text(self.model_dump()).encode()


def write_certificate(
    content: dict[str, Any], key: Ed25519PrivateKey | None, directory: Path
) -> Path:
    """Write a certificate and its page to ``directory``, signed if a ``key`` is given.

    After an error, earlier files are unchanged.

    Raises
    ------
    CertificateError : the files cannot be written.
    """
    signed = None if key is None else Signature.model_validate(sign(canonical(content), key))
    certificate = Certificate(content=content, signature=signed)
    path = directory / CERTIFICATE_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shown = page(content, None if signed is None else signed.public_key)
        with replacing_output(path) as file, replacing_output(directory / PAGE_FILE) as page_file:
            file.write_bytes(certificate.to_bytes())
            page_file.write_bytes(shown.encode())
    except OSError as error:
        raise CertificateError(f"The certificate cannot be written: {error}.") from error
    return path


def read_certificate(path: Path) -> Certificate:
    """Read a certificate.

    Raises
    ------
    CertificateError : the file is not a certificate, or not in the format of `write_certificate`.
    """
    try:
        written = path.read_bytes()
        certificate = Certificate.model_validate(json.loads(written))
        rewritten = certificate.to_bytes()
    except (OSError, ValueError, RecursionError) as error:
        raise CertificateError(f"{path} is not a certificate: {_reason(error)}.") from error
    if rewritten != written:
        raise CertificateError(
            f"{path} was not written by `vouch-build certify`, or was changed later: its layout "
            "differs. Issue the certificate again."
        )
    return certificate


def _reason(error: Exception) -> str:
    """Return the reason why a certificate cannot be read, as one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if not name:
        return "it is not a JSON object"
    kinds = {"missing": "is missing", "extra_forbidden": "is not a field of a certificate"}
    return f"`{name}` {kinds.get(first['type'], 'is not valid')}"


SIZES = {"one": "one image", "few": "2 to 5 images", "many": "more than 5 images"}
"""Size classes of labels, in words."""


def page(content: Mapping[str, Any], public_key: str | None) -> str:
    """Return the page of a certificate's ``content``; ``public_key`` is the signer's key."""
    environment = templates_of("index_builder.certificates")
    environment.filters["number"] = number
    return environment.get_template("certificate.html.jinja").render(
        content=content,
        public_key=public_key,
        sizes=SIZES,
        reliability=plots.svg(
            lambda ax: plots.reliability(content["measured"]["cross_fitted"], ax=ax),
            "Reliability diagram: share of right first results against their match probability",
        ),
        evaluation=measurements(content["measured"]["evaluation"] or {}),
    )


def number(value: float | None) -> str:
    """Format a number: integers with commas, others with 3 decimals, None as a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def measurements(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the numbers of an evaluation as a flat list of names and values."""
    rows = []
    for name, value in report.items():
        label = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            rows += measurements(value, f"{label}: ")
        elif isinstance(value, int | float) or value is None:
            rows.append((label, number(value)))
    return rows


def canonical(value: Mapping[str, Any]) -> bytes:
    """Return the JSON to sign: sorted keys, no spaces, UTF-8. Raises ValueError for NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


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
    if not is_signature(canonical(certificate.content), signed.public_key, signed.signature):
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
        yield f"date or since: not readable ({_reason(error)})"
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
