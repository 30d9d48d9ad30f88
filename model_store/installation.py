"""The installed distribution: its name on package indexes, its version and extras."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "vouch-search"
"""The name of this project's distribution; `vouch` on PyPI is another project."""


@cache
def installed_version() -> str:
    """Return the version that is installed."""
    return version(DISTRIBUTION)


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of ``distributions``, except those that are not installed."""
    found = {name: _version_of(name) for name in distributions}
    return {name: known for name, known in found.items() if known is not None}


@cache
def _version_of(distribution: str) -> str | None:
    """Return the version of a distribution, whose files are read once; None if not installed."""
    with suppress(PackageNotFoundError):
        return version(distribution)
    return None


def how_to_install(extra: str) -> str:
    """Return the commands that install ``extra``, an optional dependency in pyproject.toml."""
    return (
        f"In a checkout of Vouch: pip install '.[{extra}]'. From a package index that has it: "
        f"pip install '{DISTRIBUTION}[{extra}]'."
    )
