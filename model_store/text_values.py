"""Values as text: lists and addresses of servers in settings, and cells of CSV files.

A list is comma-separated values, or JSON. Errors about an address do not repeat its password. A
cell is never read as a formula.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit


def split_list(text: str) -> list[str]:
    """Return the values of ``a,b``, or of the JSON list ``["a", "b"]``.

    Raises
    ------
    ValueError : the text begins like JSON but is not valid, or a value is not a text.
    """
    if not text.lstrip().startswith("["):
        return [value.strip() for value in text.split(",") if value.strip()]
    values = _json(text, 'values separated by commas, or a JSON list such as ["a", "b"]')
    if not all(isinstance(value, str) for value in values):
        raise ValueError("must be a list of texts")
    return list(values)


def as_list(value: Any) -> Any:  # noqa: ANN401 - before validation
    """Return the values in a text, or in several texts if the option is repeated.

    Raises
    ------
    ValueError : see `split_list`.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        return value
    values: list[Any] = []
    for text in texts:
        values += split_list(text) if isinstance(text, str) else [text]
    return values


def as_mapping(value: Any) -> Any:  # noqa: ANN401 - before validation
    """Return the names and values in a text such as ``a=1,b=2``, or in a JSON object.

    Raises
    ------
    ValueError : a part has no ``=``, or the text begins like JSON but is not valid.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        return value
    pairs: dict[str, str] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            pairs |= _json(text, 'NAME=VALUE, or a JSON object such as {"a": "b"}')
            continue
        for part in split_list(text):
            name, sign, content = part.partition("=")
            if not sign:
                raise ValueError("must be NAME=VALUE pairs, separated by commas")
            pairs[name.strip()] = content.strip()
    return pairs


def _json(text: str, wanted: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"must be {wanted}") from None


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


FORMULA = re.compile(r"^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Pattern of the beginning of a cell that some spreadsheets read as a formula. Apostrophes may
precede it."""


def to_cell(text: str) -> str:
    """Return ``text`` as the content of a cell; a possible formula gets an apostrophe in front."""
    return f"'{text}" if FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """Return the original text of a ``cell`` from `to_cell`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
