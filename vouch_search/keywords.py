"""Check search arguments before an image is read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import ValidationError

from service import schemas


def checked_options(k: object, options: Mapping[str, object]) -> schemas.SearchFields:
    """Return the options of a search.

    Raises
    ------
    TypeError : an argument is unknown or has a wrong type; the message names it.
    ValueError : an argument is out of range.
    """
    if "limit" in options:
        raise TypeError("The number of results is `k` here, not `limit`.")
    if isinstance(k, np.integer):
        k = int(k)
    if not isinstance(options.get("filter", {}), str | Mapping | None):
        received = type(options["filter"]).__name__
        raise TypeError(f"filter: received {received}, wanted a mapping such as {{'label': 'a'}}.")
    values = {"limit": k, **options}
    try:
        return schemas.SearchFields.model_validate(values, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    text = "; ".join(
        f"{'k' if one['loc'][0] == 'limit' else one['loc'][0]}: {one['msg']} (received "
        f"{type(one['input']).__name__} {str(one['input'])[:80]!r})"
        for one in problems
    )
    is_range = all(
        one["type"].startswith(("greater", "less", "string_too", "literal")) for one in problems
    )
    kind = ValueError if is_range else TypeError
    raise kind(text.replace("is not a field here", "is not a search option"))


def checked_text(text: object) -> str:
    """Return the text of a query.

    Raises
    ------
    TypeError : it is no text.
    ValueError : it has an unpaired surrogate, which cannot be sent.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"text: received {type(text).__name__} {str(text)[:80]!r}, wanted a text such as "
            "'a red shoe'."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text: invalid character at position {error.start}, wanted valid Unicode."
        ) from error
    return text
