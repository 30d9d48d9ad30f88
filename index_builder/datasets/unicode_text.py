"""Text that every file can hold."""

from __future__ import annotations

from model_store.errors import DatasetError


def require_unicode(text: str, origin: str) -> None:
    """Refuse text with half a pair of surrogates in it, which no file of UTF-8 holds.

    So JSON may write it, and so Python reads a name of other bytes than UTF-8.

    Raises
    ------
    DatasetError
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = origin.encode(errors="backslashreplace").decode()
        raise DatasetError(
            f"{where}: {text[error.start : error.end]!r} in {text[:200]!r} is no Unicode. Write it "
            "in UTF-8; where it is the name of a file, rename it."
        ) from error
