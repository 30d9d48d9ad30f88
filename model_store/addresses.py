"""Addresses of servers in settings; error messages do not repeat their passwords."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import SplitResult, unquote, urlsplit

_NOT_AN_ADDRESS = (
    "is not a valid address; write special characters of a password as %XX, such as %2F for / and "
    "%40 for @"
)


def split_address(text: str, schemes: Collection[str]) -> SplitResult:
    """Return the parts of an address such as ``redis://user:password@host:6379/0``.

    An unescaped character can end a password too early. The rest of the password would then be read
    as host, port or path, and would be shown. A second ``@`` indicates this mistake.

    Raises
    ------
    ValueError : ``text`` is not an address of this form. The message does not repeat any part of
        ``text``.
    """
    beginnings = [f"{scheme}://" for scheme in schemes]
    if not text.startswith(tuple(beginnings)):
        raise ValueError(f"must begin with {' or '.join(beginnings)}")
    try:
        parts = urlsplit(text)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        for host in hosts:
            _ = urlsplit(f"//{host}").port
    except ValueError:
        raise ValueError(_NOT_AN_ADDRESS) from None
    rest = f"{parts.path}{parts.query}{parts.fragment}"
    if parts.netloc.count("@") > 1 or "@" in rest or "#" in text or not _is_plain(text):
        raise ValueError(_NOT_AN_ADDRESS)
    return parts


def lower_scheme(url: str) -> str:
    """Return an address with its scheme in lower case, because ``HTTP`` means ``http``."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme.lower()}{mark}{rest}" if mark else url


def require_no_user(parts: SplitResult, instead: str) -> None:
    """Refuse a user or a password in an address, because logs and bundles contain the address.

    Parameters
    ----------
    instead : correct place for the credentials; the error message names it.

    Raises
    ------
    ValueError
    """
    if "@" in parts.netloc:
        raise ValueError(f"names a user; put the credentials into {instead}")


def passwords_in(address: str) -> set[str]:
    """Return an address's password, encoded and decoded; empty if the address has no password."""
    try:
        user, at, _ = urlsplit(address).netloc.rpartition("@")
    except ValueError:
        return set()
    password = user.partition(":")[2] if at else ""
    return {password, unquote(password)} - {""}


def _is_plain(text: str) -> bool:
    return text.isprintable() and " " not in text
