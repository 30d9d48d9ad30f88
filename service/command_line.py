"""The command line of ``vouch-serve``: an option for each setting, in groups."""

from __future__ import annotations

import argparse
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from model_store.programs import add_global_options, misspelt_variables, parser_of
from service.health_check import check
from service.settings import Settings, settings_in_groups

DESCRIPTION = """\
Serve bundles over HTTP.

Each option has an environment variable; the option takes precedence. Separate
the values of a list by commas. Set secrets as variables: other users of the
machine can read a command line."""

STATUSES = """\
Exit status:
  0    ended by SIGTERM or Ctrl+C, after requests in flight were answered
  1    the service cannot start, or stopped after an error, or is not ready
  2    an option or a variable is unknown or invalid
  130  interrupted by Ctrl+C during the start"""

_UNITS = {
    "bytes_per_s": "BYTES/S",
    "s": "SECONDS",
    "bytes": "BYTES",
    "pixels": "PIXELS",
    "share": "SHARE",
    "limit": "RATE",
    "url": "URL",
    "uri": "URL",
    "endpoint": "URL",
    "urls": "GALLERY=URL",
    "host": "HOST",
    "hosts": "HOST",
    "proxies": "ADDRESS",
    "origins": "ORIGIN",
    "ancestors": "ORIGIN",
    "reasons": "REASON",
}
"""Maps the last words of a setting's name to the placeholder of the value in the help; the first
entry that fits is used."""

_TYPES = {int: "N", float: "NUMBER", str: "TEXT", SecretStr: "TEXT", Path: "PATH"}


def read_command_line(arguments: Sequence[str]) -> Settings:
    """Return the settings from options and environment variables.

    Raises
    ------
    SystemExit : help or the version was requested; status 2 if an option or variable is invalid.
    """
    given = vars(_parser().parse_args(arguments))
    try:
        settings = Settings(**given)
    except ValidationError as error:
        refuse(settings_problem(error, given), 2)
    misspelt = [
        f"{name}: is not a setting; did you mean {_variable(meant)}? Rename or unset it"
        for name, meant in misspelt_variables(os.environ, Settings.model_fields, in_any_case=True)
        if meant not in settings.model_fields_set
    ]
    if misspelt:
        refuse("; ".join(misspelt), 2)
    return settings


def check_health(arguments: Sequence[str]) -> None:
    """Request ``/readyz`` from the service that runs with these settings on this machine.

    Raises
    ------
    SystemExit : status 1 if the service is not ready or does not answer.
    """
    settings = read_command_line(arguments)
    check(settings.host, settings.port, is_https=settings.tls_cert is not None)


def refuse(why: str, status: int = 1) -> NoReturn:
    """End the process with one line on standard error."""
    say(why)
    sys.exit(status)


def say(why: str) -> None:
    """Print one line on standard error."""
    print(f"vouch-serve: {why}", file=sys.stderr, flush=True)


def settings_problem(error: ValidationError, given: Mapping[str, object]) -> str:
    """Describe invalid settings in one line, without the invalid values.

    Parameters
    ----------
    given : names of the settings given on the command line.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(dict.fromkeys(_problem(one, given) for one in found))


def _problem(error: ErrorDetails, given: Mapping[str, object]) -> str:
    """Describe the error of one option or variable."""
    name = str(error["loc"][0])
    place = _option(name) if name in given else _variable(name)
    index = error["loc"][1] if len(error["loc"]) > 1 else None
    which = f"value {index + 1}: " if isinstance(index, int) else ""  # of a list
    return f"{place}: {which}{error['msg'].removeprefix('Value error, ')}"


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vouch-serve",
        description=DESCRIPTION,
        epilog=STATUSES,
        argument_default=argparse.SUPPRESS,
    )
    for title, names in settings_in_groups().items():
        group = parser.add_argument_group(title)
        for name in names:
            _add(group, name, Settings.model_fields[name])
    group.add_argument(
        "--check-health",
        action="store_true",
        help="Check whether the running service with these settings is ready, and exit with 0 or "
        "1. Use it as the health check of a container.",
    )
    add_global_options(parser)
    return parser


def _add(group: Any, name: str, field: FieldInfo) -> None:  # noqa: ANN401 - argparse's is private
    """Add the option of a setting."""
    text = " ".join([field.description or "", *_notes(name, field)]).replace("%", "%%")
    if field.annotation is bool:
        group.add_argument(_option(name), action=argparse.BooleanOptionalAction, help=text)
        return
    several = typing.get_origin(field.annotation) in {tuple, dict}
    action = "append" if several else "store"
    value = _value_of(name, field.annotation)
    group.add_argument(_option(name), action=action, metavar=value, help=text)


def _notes(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield notes on a setting for the help: the variable, and the default value.

    The default value is left out if `description` states it.
    """
    default = field.get_default(call_default_factory=True)
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    if isinstance(default, bool):
        default = _option(name) if default else None
    if default not in (None, "", {}) and "[default:" not in str(field.description):
        yield f"[default: {default}]"
    yield f"[env: {_variable(name)}]"


def _value_of(name: str, kind: Any) -> str:  # noqa: ANN401 - a type
    """Return the placeholder of a setting's value in the help."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return "|".join(map(str, parts))
    if origin in {typing.Union, types.UnionType}:
        return "|".join(_value_of(name, part) for part in parts if part is not types.NoneType)
    unit = next((unit for words, unit in _UNITS.items() if f"_{name}".endswith(f"_{words}")), None)
    if origin is typing.Annotated:
        return _value_of(name, parts[0])
    if origin in {tuple, dict}:
        return f"{unit or _value_of(name, parts[0])},..."
    return unit or _TYPES[kind]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return f"VOUCH_{name.upper()}"
