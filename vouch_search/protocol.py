# ruff: noqa: D102 - methods are described by `Gallery`
"""What local and remote galleries share: methods, checks of arguments, many searches."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol, Self, Unpack

import numpy as np
from pydantic import ValidationError

from model_store.errors import VouchError
from model_store.image_inputs import ImageInput, as_unicode
from model_store.images import SUFFIXES
from service import schemas
from service.schemas.keywords import QueryOptions, as_json
from vouch_search.answers import Answer, Answers, Failure, Picture

ErrorChoice = Literal["keep", "raise"]
"""Handling of an image whose search fails: keep a `Failure` in its place, or raise the error."""


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


def images_of(images: object) -> list[ImageInput]:
    """Return a given list of images, or the sorted image files of a given folder.

    Raises
    ------
    TypeError, ValueError : ``images`` is neither a list nor a folder, or the folder has no images.
    """
    if _is_one_image(images) or not isinstance(images, Iterable | os.PathLike):
        raise TypeError(
            f"images: received {type(images).__name__}, wanted a list of images, or a folder. To "
            "search with one image, use search."
        )
    if isinstance(images, str | os.PathLike):
        require_path("images", images)
        folder = Path(images).expanduser()
        if not folder.is_dir():
            raise ValueError(
                f"images: {os.fspath(images)!r} is no folder. Wanted: a list of images, or a "
                "folder of image files. To search with one image, use search."
            )
        files = sorted(one for one in folder.rglob("*") if one.suffix.lower() in SUFFIXES)
        if not files:
            raise ValueError(f"images: the folder {os.fspath(images)!r} has no image files.")
        return list(files)
    return list(images)


def require_path(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse an empty text, which Python reads as the working directory.

    Raises
    ------
    TypeError : the text is empty; the message names the argument.
    """
    if not os.fspath(path):
        raise TypeError(f"{name}: received the empty text '', wanted a path.")


def _is_one_image(images: object) -> bool:
    """Return whether a value is one image, although Python can iterate over it."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind in "biuf"  # other arrays hold paths
    return isinstance(images, bytes | bytearray | memoryview) or hasattr(images, "read")


def in_threads(
    search: Callable[[ImageInput], Answer],
    images: Sequence[ImageInput],
    n_jobs: int,
    errors: ErrorChoice,
    *,
    progress: bool,
) -> Answers:
    """Search with images on threads, and return the answers in the order of the images.

    Raises
    ------
    ValueError : ``n_jobs`` or ``errors`` is wrong.
    """
    _check(n_jobs, errors)

    def outcome(image: ImageInput) -> Answer | Failure:
        try:
            return search(image)
        except Exception as error:
            return _failure(image, error, errors)

    from tqdm.auto import tqdm  # noqa: PLC0415 - a tenth of a second

    executor = ThreadPoolExecutor(n_jobs)
    try:
        found = executor.map(outcome, images)
        shown = tqdm(found, total=len(images), unit="image", disable=not progress)
        return Answers(list(shown))
    finally:
        executor.shutdown(cancel_futures=True)


async def in_turns(
    search: Callable[[ImageInput], Awaitable[Answer]],
    images: Sequence[ImageInput],
    n_jobs: int,
    errors: ErrorChoice,
    *,
    progress: bool,
) -> Answers:
    """Search with images, ``n_jobs`` at a time; return the answers in the order of the images.

    Raises
    ------
    ValueError : ``n_jobs`` or ``errors`` is wrong.
    """
    _check(n_jobs, errors)
    from tqdm.auto import tqdm  # noqa: PLC0415 - a tenth of a second

    turns = asyncio.Semaphore(n_jobs)
    with tqdm(total=len(images), unit="image", disable=not progress) as bar:

        async def outcome(image: ImageInput) -> Answer | Failure:
            async with turns:
                try:
                    return await search(image)
                except Exception as error:
                    return _failure(image, error, errors)
                finally:
                    bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(outcome(image)) for image in images]
        except ExceptionGroup as errors_of_tasks:
            # The caller expects the error of the first failed search, as from `in_threads`.
            raise errors_of_tasks.exceptions[0] from None
    return Answers([task.result() for task in tasks])


def query_name(image: object) -> str:
    """Return the path or file name of an image; ``image`` if there is none."""
    if isinstance(image, str | os.PathLike):
        return as_unicode(os.fsdecode(image))
    name = getattr(image, "filename", None) or getattr(image, "name", None)
    return as_unicode(name) if isinstance(name, str) else "image"


def _check(n_jobs: object, errors: object) -> None:
    if errors not in {"keep", "raise"}:
        raise ValueError(f"errors: received {errors!r}, wanted 'keep' or 'raise'.")
    if not isinstance(n_jobs, int) or isinstance(n_jobs, bool) or n_jobs < 1:
        raise ValueError(f"n_jobs: received {n_jobs!r}, wanted a number from 1, or None.")


def is_of_image(error: Exception) -> bool:
    """Return whether an error has its cause in the image, so that each new search fails again."""
    if isinstance(error, (VouchError, OSError, ValueError, TypeError)):
        return True
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in _REFUSALS


_REFUSALS = {401, 403, 404, 429}
"""Statuses with which a service refuses the searches of all images."""


def _status(error: Exception) -> int | None:
    """Return the status of a `VouchProblem`; None for another error."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _is_of_request(error: Exception) -> bool:
    """Return whether one request failed: by a timeout, a lost connection or an error of a server.

    Only a search of a service, which imports httpx2, has such errors.
    """
    if "httpx2" in sys.modules and isinstance(error, sys.modules["httpx2"].TransportError):
        return True
    status = _status(error)
    return status is not None and status >= 500


def _failure(image: ImageInput, error: Exception, errors: ErrorChoice) -> Failure:
    """Return a `Failure` for an error of one image; raise an error that affects all images."""
    if errors == "raise" or not (is_of_image(error) or _is_of_request(error)):
        raise error
    return Failure(query_name(image), error)
