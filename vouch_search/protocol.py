# ruff: noqa: D102 - methods are described by `Gallery`
"""The methods that local and remote galleries share, and the check of their arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, Unpack

import numpy as np
from pydantic import ValidationError

from model_store.image_inputs import ImageInput
from service import schemas
from service.schemas.keywords import QueryOptions, as_json
from vouch_search.answers import Answer, Answers, Picture
from vouch_search.many import ErrorChoice


class SearchableGallery(Protocol):
    """A gallery that can be searched; see `Gallery` for the arguments.

    ``vouch.open(folder)`` and ``vouch.Client(url).open(name)`` return such a gallery.
    """

    @property
    def name(self) -> str: ...
    @property
    def bundle_id(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def labels(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def close(self) -> None: ...
    def items(self) -> Iterator[schemas.ItemDetail]: ...
    def thumbnail(self, item_id: str) -> Picture | None: ...
    def search(self, image: ImageInput, k: int = 10, **options: Unpack[QueryOptions]) -> Answer: ...
    def search_text(self, text: str, k: int = 10, **options: Unpack[QueryOptions]) -> Answer: ...
    def search_many(
        self,
        images: str | os.PathLike[str] | Iterable[ImageInput],
        k: int = 10,
        *,
        progress: bool = False,
        n_jobs: int | None = None,
        errors: ErrorChoice = "keep",
        **options: Unpack[QueryOptions],
    ) -> Answers: ...


class AsyncSearchableGallery(Protocol):
    """A gallery that can be searched by programs that use asyncio."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    def __len__(self) -> int: ...
    async def search(
        self, image: ImageInput, k: int = 10, **options: Unpack[QueryOptions]
    ) -> Answer: ...
    async def search_text(
        self, text: str, k: int = 10, **options: Unpack[QueryOptions]
    ) -> Answer: ...
    async def search_many(
        self,
        images: str | os.PathLike[str] | Iterable[ImageInput],
        k: int = 10,
        *,
        progress: bool = False,
        n_jobs: int | None = None,
        errors: ErrorChoice = "keep",
        **options: Unpack[QueryOptions],
    ) -> Answers: ...


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
    values = {"limit": k, **options}
    if "filter" in options:
        values["filter"] = _filter_text(options["filter"])
    if options.get("source") == "":  # a form would send it as a missing field
        raise ValueError("source: received the empty text '', wanted the name of a source.")
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


def sent_options(k: object, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the given options of a search as a service reads them; see `checked_options`."""
    return checked_options(k, options).model_dump(exclude_unset=True)


def _filter_text(given: object) -> str | None:
    """Return a filter as JSON; numbers of NumPy become numbers of Python.

    Raises
    ------
    TypeError : the filter is no mapping, or has a value that JSON does not have.
    """
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(
            f"filter: received {type(given).__name__}, wanted a mapping such as {{'label': 'a'}}."
        )
    return json.dumps(as_json("filter", given), ensure_ascii=False)


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
