"""``vouch-keys``: make, rotate, revoke and list the API keys of a service.

A running service reads a changed file within a second, without a restart.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from model_store.errors import KeysError
from model_store.programs import add_global_options, interruptible, parser_of, parser_settings
from model_store.text_values import as_list
from service.access.keys import (
    MAX_NAME,
    SCOPES,
    ApiKey,
    change_keys,
    mint,
    read_keys,
    revoked,
    rotated,
)
from service.command_line import settings_problem
from service.settings import Settings, parse_rate

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; errors end with status 1 and one line on standard error."""
    with interruptible():
        options = _parser().parse_args(arguments)
        try:
            options.run(_path(options), options)
        except KeysError as error:
            _refuse(str(error))


def create(path: Path, options: argparse.Namespace) -> None:
    """Make a key and print it."""
    if not (options.name.isprintable() and 1 <= len(options.name) <= MAX_NAME):
        raise KeysError(
            f"{options.name!r} is not a valid name; wanted: 1 to {MAX_NAME} printable letters."
        )
    expires_at = None if options.expires is None else datetime.now(UTC) + options.expires
    try:
        kept, text = mint(
            options.name,
            options.scope,
            expires_at=expires_at,
            rate_limit=options.rate_limit,
            expected_absent=options.expected_absent,
            galleries=None if options.galleries is None else tuple(as_list(options.galleries)),
            searches=options.searches,
            max_items=options.max_items,
            max_galleries=options.max_galleries,
        )
    except ValidationError as error:
        raise KeysError(
            "; ".join(f"{entry['loc'][0]}: {entry['msg']}" for entry in error.errors())
        ) from None
    change_keys(path, lambda keys: [*keys, kept])
    _hand_out(kept, text)


def rotate(path: Path, options: argparse.Namespace) -> None:
    """Create the successor of a key and print it; the old key stays valid for the grace period."""
    made: list[tuple[ApiKey, str]] = []

    def change(keys: Sequence[ApiKey]) -> list[ApiKey]:
        old, new, text = rotated(_find(keys, options.id), options.grace)
        made.append((new, text))
        return [*_replaced(keys, old), new]

    change_keys(path, change)
    _hand_out(*made[0])


def revoke(path: Path, options: argparse.Namespace) -> None:
    """Revoke a key."""
    change_keys(path, lambda keys: _replaced(keys, revoked(_find(keys, options.id))))


def show(path: Path, _: argparse.Namespace) -> None:
    """Print a table of the keys, without their secrets."""
    now = datetime.now(UTC)
    rows = [("id", "scope", "state", "created", "expires", "rate limit", "galleries", "name")]
    rows += [
        (
            key.id,
            key.scope,
            key.state(now),
            f"{key.created_at:%Y-%m-%d %H:%M}",
            f"{key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at else "never",
            key.rate_limit or "the service's",
            " ".join(key.galleries or ("all",)),
            key.name,
        )
        for key in read_keys(path)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _hand_out(kept: ApiKey, text: str) -> None:
    """Print the key to standard output, so that a pipe gets only the key; print notes to stderr."""
    print(text)
    print(
        f"vouch-keys: {kept.id} ({kept.name}) may {kept.scope}. The key is not stored, and is "
        "shown only now.",
        file=sys.stderr,
    )


def _find(keys: Sequence[ApiKey], key_id: str) -> ApiKey:
    for key in keys:
        if key.id == key_id:
            return key
    # The operator may have pasted the whole key, which the error must not show.
    shown = repr(key_id) if re.fullmatch(r"\w{1,12}", key_id, re.ASCII) else "with that id"
    raise KeysError(f"There is no key {shown}. `vouch-keys list` shows all keys.")


def _replaced(keys: Sequence[ApiKey], changed: ApiKey) -> list[ApiKey]:
    return [changed if key.id == changed.id else key for key in keys]


def _path(options: argparse.Namespace) -> Path:
    try:
        path: Path | None = options.file or Settings().keys
    except ValidationError as error:
        _refuse(settings_problem(error, {}))
    if path is None:
        _refuse("The file of keys is not configured. Give its path with --file or in VOUCH_KEYS.")
    return path


def _refuse(why: str) -> NoReturn:
    print(f"vouch-keys: {why}", file=sys.stderr)
    sys.exit(1)


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if found is None and text != "0":
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; wanted: 30m, 24h, 90d, or 0")
    return timedelta() if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})


def _rate(text: str) -> str:
    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return share


STATUSES = """\
Exit status:
  0    done
  1    an error, described in one line on standard error
  2    an unknown or invalid argument
  130  interrupted by Ctrl+C"""


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vouch-keys",
        " COMMAND",
        description="Make, replace, revoke and list the API keys of a service.\n\n"
        "The file of keys holds hashes only. A running service reads a changed file\n"
        "within a second. `vouch-keys COMMAND --help` describes a command.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--file", type=Path, metavar="PATH", help="File of keys. [env: VOUCH_KEYS]")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="Commands")

    def command(
        name: str, run: Callable[[Path, argparse.Namespace], None], about: str, arguments: str = ""
    ) -> argparse.ArgumentParser:
        settings = parser_settings(f"vouch-keys {name}", arguments)
        added = commands.add_parser(name, help=about, description=about, **settings)
        added.set_defaults(run=run)
        return added

    making = command(
        "create", create, "Make a key and print it; the key cannot be shown again.", " NAME"
    )
    making.add_argument(
        "name", metavar="NAME", help="Name of the key's owner, for the list and the log."
    )
    making.add_argument(
        "--scope",
        choices=SCOPES,
        metavar="|".join(SCOPES),
        default="read",
        help="Scope of the key; each scope includes the scopes before it. [default: read]",
    )
    making.add_argument(
        "--expires",
        type=_duration,
        metavar="DURATION",
        help="Time until the key expires, such as 90d. [default: never]",
    )
    making.add_argument(
        "--rate-limit",
        type=_rate,
        metavar="RATE",
        help="Requests in a period, such as 600/minute. [default: the service's]",
    )
    making.add_argument(
        "--expected-absent",
        type=_share,
        metavar="SHARE",
        help="Share of the key's queries that have no match in a gallery, such as 0.3. "
        "[default: the gallery's share]",
    )
    making.add_argument(
        "--galleries",
        nargs="+",
        metavar="NAME",
        help="Galleries that the key may use, such as shoes,'acme-*'. [default: all]",
    )
    making.add_argument(
        "--searches",
        type=_rate,
        metavar="RATE",
        help="Quota of searches, such as 100000/month. [default: no quota]",
    )
    making.add_argument(
        "--max-items", type=int, metavar="N", help="Quota of items in a gallery. [default: none]"
    )
    making.add_argument(
        "--max-galleries",
        type=int,
        metavar="N",
        help="Quota of galleries that the key may create. [default: none]",
    )
    rotating = command(
        "rotate", rotate, "Replace a key; the old key stays valid for a limited time.", " ID"
    )
    rotating.add_argument("id", metavar="ID", help="Id of the key, from `vouch-keys list`.")
    rotating.add_argument(
        "--grace",
        type=_duration,
        metavar="DURATION",
        default=timedelta(hours=24),
        help="Time for which the old key stays valid. [default: 24h]",
    )
    revoking = command("revoke", revoke, "Make a key invalid.", " ID")
    revoking.add_argument("id", metavar="ID", help="Id of the key, from `vouch-keys list`.")
    listing = command("list", show, "List the keys: id, scope, state, dates, limits and name.")
    for added in (making, rotating, revoking, listing):
        add_global_options(added)
    add_global_options(parser)
    return parser


if __name__ == "__main__":
    main()
