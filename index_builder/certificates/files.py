"""The files of a certificate: its statements with their signature, and its page.

The page is printable HTML without scripts or external files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, ValidationError

from index_builder.metrics.pages import templates_of
from model_store.errors import CertificateError
from model_store.files import json_text
from model_store.signing import is_signature, sign
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

    Raises
    ------
    CertificateError : the files cannot be written.
    """
    signed = None if key is None else Signature.model_validate(signature(content, key))
    certificate = Certificate(content=content, signature=signed)
    path = directory / CERTIFICATE_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(certificate.to_bytes())
        (directory / PAGE_FILE).write_bytes(
            page(content, None if signed is None else signed.public_key).encode()
        )
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
    except (OSError, ValueError, ValidationError) as error:
        raise CertificateError(f"{path} is not a certificate: {error}") from error
    if rewritten != written:
        raise CertificateError(
            f"{path} was not written by `vouch-build certify`, or was changed later: its layout "
            "differs. Issue the certificate again."
        )
    return certificate


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


def signature(value: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, str]:
    """Sign the canonical JSON of ``value``."""
    return sign(canonical(value), key)


def is_signed(value: Mapping[str, Any], public_key: str, signed: str) -> bool:
    """Return whether ``signed`` is the signature of ``value``, both in hexadecimal."""
    return is_signature(canonical(value), public_key, signed)
