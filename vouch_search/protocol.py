# ruff: noqa: D102 - methods are described by `Gallery`
"""The methods that local and remote galleries share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self, Unpack

from model_store.image_inputs import ImageInput
from service import schemas
from service.schemas.keywords import QueryOptions
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
