"""The commands ``vouch-build certify`` and ``vouch-build verify``."""

from __future__ import annotations

import importlib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from index_builder.progress import working
from model_store.bundles.directory import locate
from model_store.errors import UsageError


def certify_command(
    bundle: Annotated[
        Path | None,
        typer.Argument(help="A bundle, or a directory of bundles with a current bundle."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Private key to sign with. [default: not signed]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory for certificate.json and certificate.html. [default: certificates/<id>]"
        ),
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(help="Feedback file of the service, to report errors since the calibration."),
    ] = None,
    day: Annotated[
        str | None, typer.Option("--date", help="Date of the certificate. [default: today, in UTC]")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(
            help="Write a new private key to this file, and its public key to <file>.pub."
        ),
    ] = None,
) -> None:
    """Write the guarantees of a bundle and their evidence as JSON and as an HTML page."""
    if new_key is not None:
        print(importlib.import_module("model_store.signing").new_key(new_key))
        if bundle is None:
            return
        key = key or new_key
    if bundle is None:
        raise UsageError("certify needs BUNDLE, or --new-key FILE to make a key.")
    # Imported late, because other commands and --help do not need these modules.
    contents = importlib.import_module("index_builder.certificates.content")
    files = importlib.import_module("index_builder.certificates.verification")
    signing = importlib.import_module("model_store.signing")
    with working("verifying"):
        opened = contents.open_certified(bundle)
    directory = output or Path("certificates") / opened.manifest.id
    if directory.resolve().is_relative_to(locate(bundle).resolve()):
        raise UsageError(
            f"--output {directory} is in the bundle, but a bundle must not change. Name another "
            "directory."
        )
    seen = None
    if feedback is not None:
        since = importlib.import_module("index_builder.certificates.since")
        seen = since.observed(feedback, opened.manifest.id, opened.calibration)
    content = contents.content(opened, _day(day), seen)
    signed_by = None if key is None else signing.read_private_key(key)
    print(files.write_certificate(content, signed_by, directory))


def verify_command(
    certificate: Annotated[Path, typer.Argument(help="A certificate.json.")],
    bundle: Annotated[
        Path,
        typer.Option(
            help="The certified bundle, or a directory of bundles whose current bundle is the "
            "certified bundle."
        ),
    ],
    public_key: Annotated[
        Path | None,
        typer.Option(help="Public key of the required signer. [default: any signer, or none]"),
    ] = None,
) -> None:
    """Recompute a certificate from its bundle, and check its signature.

    The exit status is 1 if a number or the signature is wrong.
    """
    files = importlib.import_module("index_builder.certificates.verification")
    signing = importlib.import_module("model_store.signing")
    read = files.read_certificate(certificate)
    wanted = None if public_key is None else signing.read_public_key(public_key)
    with working("verifying"):
        found = files.differences(read, bundle, wanted)
    for line in found:
        print(line)
    if found:
        raise typer.Exit(1)
    if read.signature is None:
        print("every number is confirmed; the certificate is not signed")
    else:
        whose = "the required key" if wanted else "the key in the certificate"
        print(f"every number is confirmed; signed by {whose}, {read.signature.public_key}")


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--date {text!r} is not a date. Give a date such as 2026-01-31."
        ) from error
