"""Checks that a text can be written as UTF-8."""

from __future__ import annotations

from model_store.errors import DatasetError


def require_unicode(text: str, origin: str) -> None:
    """Refuse text with an unpaired surrogate, which UTF-8 cannot encode.

    An unpaired surrogate comes from an escape in JSON, or from a file name that is not UTF-8.

    Raises
    ------
    DatasetError
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = origin.encode(errors="backslashreplace").decode()
        raise DatasetError(
            f"{where}: {text[error.start : error.end]!r} in {text[:200]!r} is no Unicode. Write "
            "the text in UTF-8; if the text is a file name, rename the file."
        ) from error
