"""Commands on a directory of bundles: list, activate, remove, push, pull, certify, verify.

Modules are imported late, because the help of the commands does not need them.
"""

from __future__ import annotations

import importlib
import json
import shlex
from collections.abc import Container
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from index_builder.commands.command_line import Options, with_options
from index_builder.configuration.environment import (
    BUNDLE_KEYS_VARIABLE,
    SIGNING_KEY_VARIABLE,
    signing,
    trusted_keys,
)
from index_builder.progress import console, say_what_is_next, waiting_for, working
from model_store.bundles.directory import (
    KEPT_BUNDLES,
    activate,
    bundle_directory,
    bundle_ids,
    created_below,
    current_id,
    galleries_below,
    locate,
    locate_current,
    previous_id,
)
from model_store.bundles.manifest import SCHEMA_VERSION, read_manifest
from model_store.errors import BundleNotFound, PointerUnreadable, UsageError, VouchError
from model_store.text_values import as_list

if TYPE_CHECKING:
    from model_store.bundles.history import BundleSummary

DirectoryArgument = Annotated[Path, typer.Argument(help="The directory of bundles.")]


def bundles_command(
    directory: DirectoryArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of JSON objects, with all numbers.")
    ] = False,
) -> None:
    """List the bundles in a directory with their calibrations, oldest first.

    The columns `match`, `wrong` and `limit` have the share of queries with verdict `match`, the
    observed share of wrong answers among these matches, and its guaranteed maximum.
    """
    marks = {current_id(directory): "current", previous_id(directory): "previous"}
    ids = bundle_ids(directory)
    if not ids:
        locate_current(directory)
    found = importlib.import_module("model_store.bundles.history").bundle_history(
        [bundle_directory(directory, bundle_id) for bundle_id in ids]
    )
    if as_json:
        shown = [{**one.as_json(), "mark": marks.get(one.id)} for one in found]
        print(json.dumps(shown, indent=1))
        return
    rows = [(*_columns(one), marks.get(one.id, "")) for one in found]
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    for row, one in zip((_HEAD, *rows), (None, *found), strict=True):
        print("  ".join(map(str.ljust, row, widths)).rstrip())
        if one is not None and one.reason:
            print(f"    {one.reason}")


_HEAD = ("id", "published", "items", "labels", "queries", "match", "wrong", "limit", "release", "")


def _columns(one: BundleSummary) -> tuple[str, ...]:
    """Return the columns of a bundle, except its mark; a dash for an unknown value."""
    found = one.calibration
    outcome = None if found is None else found.outcome
    percent = importlib.import_module("model_store.decision.outcome").percent

    def number(value: int | None) -> str:
        return "–" if value is None else f"{value:,}"

    def share(name: str) -> str:
        value = getattr(outcome, name, None)
        return "–" if value is None else percent(value)

    return (
        one.id,
        f"{one.published_at.astimezone():%Y-%m-%d %H:%M}",
        number(one.n_items),
        number(one.n_labels),
        number(getattr(outcome, "n_queries", None)),
        share("match_share"),
        share("match_error"),
        share("max_error"),
        one.release or "–",
    )


def activate_command(
    directory: DirectoryArgument,
    bundle_id: Annotated[str, typer.Argument(help="Id of a bundle, from `vouch-build bundles`.")],
) -> None:
    """Verify a bundle, and make it the current bundle; running services switch to it.

    The bundle is served with the changes that were written to it. If the current bundle was newer,
    later changes stay in it; the command prints their number.
    """
    if bundle_id not in bundle_ids(directory):
        raise BundleNotFound(
            f"There is no bundle {bundle_id!r} in {directory}. `vouch-build bundles {directory}` "
            "lists all bundles."
        )
    left = _readable_current_id(directory)
    _activate(directory, bundle_id, (SCHEMA_VERSION,))
    oldest_first = bundle_ids(directory)
    if left in oldest_first[oldest_first.index(bundle_id) + 1 :]:
        _say_what_is_left(directory, left, bundle_id)


def _readable_current_id(directory: Path) -> str | None:
    try:
        return current_id(directory)
    except PointerUnreadable:  # `activate` repairs the pointer
        return None


def _activate(directory: Path, bundle_id: str, schemas: Container[int]) -> None:
    hold = importlib.import_module("model_store.bundles.retention").Hold
    with working("verifying"), hold(bundle_directory(directory, bundle_id)):  # against `prune`
        read_manifest(bundle_directory(directory, bundle_id), schemas)
        activate(directory, bundle_id)


def upgrade_command(
    directory: DirectoryArgument,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only check; exit status 1 if a bundle needs an upgrade."),
    ] = False,
) -> None:
    """Convert bundles of earlier releases, with their live changes, to this release.

    The command converts the current bundle of the directory, and the current bundle of each created
    gallery in the directory. If a bundle stores calibration queries, an outdated calibration is
    fitted again. The old bundle is kept: to return to the old release, run `vouch-build rollback`.
    """
    upgrades = importlib.import_module("model_store.bundles.upgrade")
    roots = galleries_below(directory) or [directory]
    recalibrate = importlib.import_module("index_builder.indexing.recalibrate")
    if check:
        found = {}
        for root in roots:
            if (schema := upgrades.old_schema(root)) is not None:
                found[root] = f"a bundle of schema {schema}"
            elif recalibrate.can_be_renewed(root):
                found[root] = "a calibration of an earlier release"
        for root, what in found.items():
            print(f"{root} has {what}. Run `vouch-build upgrade {directory}`.")
        if found:
            raise typer.Exit(1)
        return
    for root in roots:
        with working(f"upgrading {root}"):
            done = upgrades.upgrade(root, signing())
        if done is None:
            before = current_id(root)
            if recalibrate.can_be_renewed(root):
                with working(f"calibrating {root}"):
                    after = recalibrate.recalibrate_bundle(root, {}).name
                print(f"{root}: {before} was calibrated again by this release and is now {after}")
            else:
                print(f"{root}: {before} needs no upgrade")
                if recalibrate.is_outdated(root):
                    print(recalibrate.NOTHING_KEPT)
            continue
        print(
            f"{root}: {done.before} (schema {done.schema}) is now {done.after}, "
            f"{done.n_items} items, {done.n_changes} changed since the build"
        )
        if done.left_calibration:
            print(
                "The old calibration is left out, because it has no evidence for guarantees. The "
                f"verdict is `not_calibrated` until `vouch-build calibrate {root}` has run."
            )


def absent_share_command(
    directory: DirectoryArgument,
    share: Annotated[
        float | None,
        typer.Argument(help="Assumed share of queries without a match, above 0 and below 1."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Use the configured share again.")] = False,
) -> None:
    """Set or print the share of absent queries that a gallery's answers assume.

    Running services use the new share within seconds. `GET /v1/galleries/GALLERY/calibration`
    returns the share that is estimated from the served queries.
    """
    operator = importlib.import_module("model_store.bundles.directory")
    if share is not None and reset:
        raise UsageError("A share and --reset were both given. Give one of them.")
    locate_current(directory)
    if share is None and not reset:
        settings = operator.read_operator(directory)
    else:
        settings = operator.change_operator(directory, lambda now: now.with_share(share))
    print("configured" if settings.absent_share is None else f"{settings.absent_share:g}")


def acknowledge_command(directory: DirectoryArgument) -> None:
    """End the drift alarms of a gallery, and restart the drift tests.

    Running services apply this within seconds. If the served queries still differ from the
    calibration queries, the alarms return. Then run `vouch-build calibrate` with queries like the
    served queries.
    """
    operator = importlib.import_module("model_store.bundles.directory")
    locate_current(directory)
    operator.change_operator(directory, operator.OperatorSettings.acknowledged)


def sign_command(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle, or a directory of bundles with a current bundle.")
    ],
    key: Annotated[
        Path,
        typer.Option(
            help="Private key to sign with; `certify --new-key` creates one.",
            envvar=SIGNING_KEY_VARIABLE,
        ),
    ],
) -> None:
    """Verify and sign a bundle. Services with VOUCH_BUNDLE_KEYS accept only signed bundles."""
    signatures = importlib.import_module("model_store.bundles.signatures")
    signing = importlib.import_module("model_store.bundles.signatures")
    directory = locate(bundle)
    with working("verifying"):
        manifest = read_manifest(directory)
    signatures.write_signature(directory, manifest, signing.read_private_key(key))
    print(directory)


def prune_command(
    directory: DirectoryArgument,
    keep: Annotated[
        int, typer.Option(min=1, help="Number of bundles to keep, including the current bundle.")
    ] = KEPT_BUNDLES,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the bundles to remove.")
    ] = False,
) -> None:
    """Remove old bundles with their changes; keep the current, the previous, and bundles in use."""
    prune = importlib.import_module("model_store.bundles.retention").prune
    locate_current(directory)  # else `prune` would silently remove nothing
    for bundle_id in prune(directory, keep, dry_run=dry_run):
        print(bundle_id)


def doctor_command(
    path: Annotated[
        Path | None,
        typer.Argument(help="A bundle, a directory of bundles, or the run directory of `index`."),
    ] = None,
) -> None:
    """Check an installation, bundles or a run of `index`; exit status 1 if a check fails."""
    with working("loading libraries"):
        examine = importlib.import_module("index_builder.commands.doctor").examine
    states = set()
    for finding in waiting_for(examine(path), "examining"):
        states.add(finding.state)
        print(f"{finding.state:5} {finding.what}")
        if finding.advice:
            print(f"      {finding.advice}")
    if "wrong" in states:
        raise typer.Exit(1)


def rollback_command(directory: DirectoryArgument) -> None:
    """Make the previous bundle the current bundle again.

    The changes that were written to the other bundle stay there; the command prints their number.
    After the rollback of an upgrade, the command also prints how to roll back the created galleries
    in the directory that the upgrade converted.
    """
    before = previous_id(directory)
    if before is None:
        raise BundleNotFound(
            f"{directory} has no previous bundle. `vouch-build bundles {directory}` lists all "
            "bundles."
        )
    upgrades = importlib.import_module("model_store.bundles.upgrade")
    left = current_id(directory)
    _activate(directory, before, upgrades.KNOWN_SCHEMAS)
    print(before)
    if left is not None and left != before:
        _say_what_is_left(directory, left, before)
    if (schema := upgrades.old_schema(directory)) is not None:
        print(f"It has schema {schema}: start the release that built it.")
    if _is_of_earlier_release(bundle_directory(directory, before)):
        for root in filter(_can_go_back, created_below(directory)):
            command = shlex.join(["vouch-build", "rollback", str(root)])
            print(f"The upgrade also converted a created gallery. Roll it back: {command}")


def _say_what_is_left(directory: Path, left: str, now: str) -> None:
    changes = importlib.import_module("model_store.bundles.changes")
    try:
        both = bundle_directory(directory, left), bundle_directory(directory, now)
        n_changes = changes.n_changes_without(directory, *both)
    except VouchError:  # a damaged bundle may be the reason for the rollback
        return
    if n_changes:
        command = shlex.join(["vouch-build", "activate", str(directory), left])
        print(f"Changes that are only in the other bundle: {n_changes}. To return to it: {command}")


def _can_go_back(root: Path) -> bool:
    """Return whether an upgrade has replaced the previous bundle of ``root``."""
    before = previous_id(root)
    return (
        before in bundle_ids(root)
        and _is_of_earlier_release(bundle_directory(root, before))
        and not _is_of_earlier_release(locate_current(root))
    )


def _is_of_earlier_release(bundle: Path) -> bool:
    """Return whether `upgrade` converts the bundle, or fits its calibration again."""
    upgrades = importlib.import_module("model_store.bundles.upgrade")
    recalibrate = importlib.import_module("index_builder.indexing.recalibrate")
    return upgrades.old_schema_of(bundle) is not None or recalibrate.is_outdated(bundle)


ADDRESS = "A directory of bundles, s3://BUCKET/PREFIX (or gs://, az://), or hf://OWNER/NAME."


def push_command(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle, or a directory of bundles with a current bundle.")
    ],
    destination: Annotated[str, typer.Argument(help=ADDRESS)],
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="If the repository on the Hub is new, make it public. A bundle contains "
            "thumbnails of its images.",
        ),
    ] = False,
) -> None:
    """Verify a bundle, and copy it to a place from which other machines can pull it.

    An interruption changes no bundle at the destination. The same command continues the copy.
    """
    from index_builder.exchange.places import place_at  # noqa: PLC0415
    from model_store.bundles.changes import changes_path  # noqa: PLC0415
    from model_store.bundles.manifest import read_manifest  # noqa: PLC0415
    from model_store.bundles.retention import Hold  # noqa: PLC0415

    directory = locate(bundle)
    place = place_at(destination, public=public)
    with Hold(directory):
        with working("verifying"):
            manifest = read_manifest(directory)
        if directory != bundle and changes_path(bundle, manifest.id).exists():
            console.print(
                "Live changes of the gallery are not pushed. `vouch-build compact` writes them to "
                "a new bundle."
            )
        sent = place.put(directory, manifest)
    print(sent)


def pull_command(
    source: Annotated[str, typer.Argument(help=f"{ADDRESS} On the Hub, @REVISION may follow.")],
    directory: Annotated[
        Path | None,
        typer.Argument(
            help="The directory of bundles to pull into. [default: bundles/ followed by the last "
            "part of the source]"
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="Public keys; the bundle must be signed with one of the keys. [default: the keys "
            f"of {BUNDLE_KEYS_VARIABLE}]"
        ),
    ] = None,
    keep_current: Annotated[
        bool,
        typer.Option("--keep-current", help="Do not make the pulled bundle the current bundle."),
    ] = False,
) -> None:
    """Fetch a bundle, verify each byte and its signature, and make it current.

    An interruption leaves no incomplete bundle. The same command fetches the missing files.
    """
    from index_builder.exchange.places import last_part, place_at  # noqa: PLC0415
    from index_builder.exchange.pull import pull  # noqa: PLC0415

    root = directory or Path("bundles") / last_part(source)
    keys = trusted_keys([Path(file) for file in as_list(trust or [])])
    with working("pulling"):
        pulled = pull(place_at(source), root, keys, activated=not keep_current)
    print(pulled)
    say_what_is_next(root)


class CertifyOptions(Options):
    """Options of ``certify``."""

    bundle: Annotated[
        Path | None,
        typer.Argument(help="A bundle, or a directory of bundles with a current bundle."),
    ] = None
    key: Path | None = None
    """Private key to sign with. [default: not signed]"""
    output: Path | None = None
    """Directory for certificate.json and certificate.html. [default: certificates/<id>]"""
    feedback: Path | None = None
    """Feedback file of the service, to report errors since the calibration."""
    day: Annotated[
        str | None, typer.Option("--date", help="Date of the certificate. [default: today, in UTC]")
    ] = None
    new_key: Path | None = None
    """Write a new private key to this file, and its public key to <file>.pub."""


@with_options(CertifyOptions)
def certify_command(options: CertifyOptions) -> None:
    """Write the guarantees of a bundle and their evidence as JSON and as an HTML page."""
    key = options.key
    if options.new_key is not None:
        print(importlib.import_module("model_store.bundles.signatures").new_key(options.new_key))
        if options.bundle is None:
            return
        key = key or options.new_key
    if options.bundle is None:
        raise UsageError("certify needs BUNDLE, or --new-key FILE to make a key.")
    # Imported late, because other commands and --help do not need these modules.
    contents = importlib.import_module("index_builder.certificates.content")
    files = importlib.import_module("index_builder.certificates.verification")
    signing = importlib.import_module("model_store.bundles.signatures")
    with working("verifying"):
        opened = contents.open_certified(options.bundle)
    directory = options.output or Path("certificates") / opened.manifest.id
    if directory.resolve().is_relative_to(locate(options.bundle).resolve()):
        raise UsageError(
            f"--output {directory} is in the bundle, but a bundle must not change. Name another "
            "directory."
        )
    seen = None
    if options.feedback is not None:
        since = importlib.import_module("index_builder.certificates.content")
        seen = since.observed(options.feedback, opened.manifest.id, opened.calibration)
    content = contents.content(opened, _day(options.day), seen)
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
    signing = importlib.import_module("model_store.bundles.signatures")
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
