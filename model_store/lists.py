"""Lists in options and environment variables: comma-separated values, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


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
