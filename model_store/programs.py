"""Conventions of all programs: ``--version``, Ctrl+C, variables, and the layout of help."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from model_store.errors import ConfigError
from model_store.installation import installed_version

INTERRUPTED = 130
"""Exit status after Ctrl+C: 128 plus the number of SIGINT."""

PREFIX = "VOUCH_"
"""Prefix of the names of all environment variables."""

SECRETS_DIR = "VOUCH_SECRETS_DIR"
"""Variable with the directory of files that can replace variables, one file for each variable."""

_OF_OTHER_PROGRAMS = frozenset({"trusted_proxy", "api_key", "allowed_origins"})
"""Variables of other programs, for example of the load balancer and of clients, without ``PREFIX``,
in lower case."""

_SERVICE_LINK = re.compile(
    r"_SERVICE_(HOST|PORT\w*)$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
)
"""Names of the variables that Kubernetes sets in all pods for a Service."""

_NEARLY = 0.75
"""Minimum similarity (0 to 1) of two names for the hint "did you mean"."""

_layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=10)
"""Help layout: each description is below its option, at the width of the terminal."""


_VALUE = re.compile(r"(?<=ignored explicit argument).*", re.DOTALL)
"""Pattern of the value in an argparse error about an option that takes no value."""

_NAME = re.compile(r"--?[a-z][a-z-]*")


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages do not show the values of unknown arguments."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Parse the arguments; see `argparse.ArgumentParser.parse_args`."""
        known, left = self.parse_known_args(args, namespace)
        if left:
            names = [one.partition("=")[0] for one in left]
            shown = [name for name in names if _NAME.fullmatch(name)]
            n_values = len(left) - len(shown)
            values = f"{n_values} value{'s' * (n_values > 1)} without an option"
            self.error(f"unrecognized arguments: {', '.join([*shown, *[values][: n_values > 0]])}")
        return known

    def error(self, message: str) -> NoReturn:
        """Print the usage and ``message``, and end the program with status 2."""
        super().error(_VALUE.sub("", message))


def parser_of(program: str, arguments: str = "", **settings: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    """Return the parser of a program, or the base of a command's parser.

    Parameters
    ----------
    arguments : text after ``[OPTIONS]`` in the usage line.
    settings : arguments of `argparse.ArgumentParser` that override the common settings.
    """
    return _Parser(**parser_settings(program, arguments) | settings)


def parser_settings(program: str, arguments: str = "") -> dict[str, Any]:
    """Return the common settings of all parsers of programs and commands."""
    return {
        "prog": program,
        "usage": f"{program} [OPTIONS]{arguments}",
        "formatter_class": _layout,
        "allow_abbrev": False,
        "add_help": False,
    }


def misspelt_variables(
    names: Iterable[str], known: Collection[str], *, in_any_case: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield misspelt ``VOUCH_*`` variables, each with the most similar name in ``known``.

    For example, an operator may write ``VOUCH_KEY`` instead of ``VOUCH_KEYS``. If the service
    ignored this variable, the service would start without API keys.

    Parameters
    ----------
    names : names of all variables.
    known : variables that the program reads, without ``PREFIX``, in lower case.
    in_any_case : whether the program also reads variables in lower case, such as ``vouch_keys``.
    """
    for name in sorted(names):
        upper = name.upper()
        plain = upper.removeprefix(PREFIX).lower()
        if not upper.startswith(PREFIX) or _SERVICE_LINK.search(upper):
            continue
        if plain in known:
            if not in_any_case and name != upper:
                yield name, plain
        elif plain not in _OF_OTHER_PROGRAMS:
            for meant in get_close_matches(plain, known, n=1, cutoff=_NEARLY):
                yield name, meant


def variable(name: str, folder: Path | None = None) -> str | None:
    """Return the value of a variable, or else the text of its file in the folder of secrets.

    The service reads its settings in the same way. An empty value counts as not set.

    Parameters
    ----------
    name : name of the variable; the name of the file is the same, in any case.
    folder : the folder of secrets; by default ``VOUCH_SECRETS_DIR``.

    Raises
    ------
    ConfigError : the directory or the file cannot be read. The message does not contain the value.
    """
    where = folder or os.environ.get(SECRETS_DIR)
    if os.environ.get(name) or not where:
        return os.environ.get(name) or None
    try:
        files = [one for one in Path(where).iterdir() if one.name.lower() == name.lower()]
    except (OSError, ValueError):
        raise ConfigError(
            f"{SECRETS_DIR} must be a directory that can be read, with a file for each secret."
        ) from None
    for file in sorted(files):
        with suppress(OSError, ValueError):
            if file.is_file():  # reading a pipe would not end
                return file.read_text(encoding="utf-8").strip() or None
        raise ConfigError(f"{file} must be a text file in UTF-8 that can be read.")
    return None


def add_global_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--version`` and ``--help`` to a parser, below all other options."""
    group = parser.add_argument_group("Global options")
    version = version_line(parser.prog.partition(" ")[0])
    group.add_argument(
        "-V", "--version", action="version", version=version, help="Print the version and exit."
    )
    group.add_argument("-h", "--help", action="help", help="Show this message and exit.")


def version_line(program: str) -> str:
    """Return what ``program --version`` prints."""
    return f"{program} {installed_version()}"


def asks_for_version(arguments: Sequence[str]) -> bool:
    """Return whether the arguments only request the version."""
    return list(arguments) in (["--version"], ["-V"])


@contextmanager
def interruptible() -> Iterator[None]:
    """After Ctrl+C, also during imports, end the program with one line and status 130.

    Raises
    ------
    SystemExit
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
