"""Galleries of a running service, with the methods of local galleries."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, TypeVar, Unpack

import httpx2
from pydantic import BaseModel

from model_store.image_inputs import ImageInput, image_file
from service import schemas
from service.client import VouchClient, VouchProblem
from service.client.contract import (
    LOST_CONNECTION,
    base_of,
    fields_of,
    headers_of,
    path_of,
    read,
    seconds_to_wait,
)
from service.schemas.keywords import QueryOptions
from vouch_search.answers import Answer, Answers, Picture
from vouch_search.protocol import (
    ErrorChoice,
    checked_options,
    checked_text,
    images_of,
    in_threads,
    in_turns,
    query_name,
    sent_options,
)

AnswerT = TypeVar("AnswerT", bound=BaseModel)

N_REQUESTS = 4
"""Default number of concurrent searches."""


class Client(VouchClient):
    """A client of one service; `open` returns a gallery with the methods of `Gallery`.

    Each other method calls one path of the service, see `VouchClient`.

    >>> gallery = Client("http://127.0.0.1:8080").open("demo")  # doctest: +SKIP
    >>> gallery.search("photo.png", k=5).verdict  # doctest: +SKIP
    'match'
    """

    def open(self, gallery: str) -> RemoteGallery:
        """Return a gallery of the service.

        Raises
        ------
        VouchProblem : such as ``gallery_not_found``.
        """
        return RemoteGallery(self, self.gallery(gallery))


class RemoteGallery:
    """A gallery of a service, with the methods of `Gallery`; `Client.open` returns it."""

    def __init__(self, client: Client, detail: schemas.GalleryDetail) -> None:
        self._client = client
        self._detail = detail

    @property
    def name(self) -> str:
        """The name of the gallery."""
        return self._detail.name

    @property
    def bundle_id(self) -> str:
        """The id of the bundle that was served when the gallery was opened."""
        return self._detail.bundle.id

    @property
    def description(self) -> str:
        """The description of the gallery's content."""
        return self._detail.description

    @property
    def labels(self) -> Sequence[str]:
        """The distinct labels of the items, in alphabetical order."""
        return tuple(self._client.labels(self.name))

    def __len__(self) -> int:
        return self._detail.n_items

    def __repr__(self) -> str:
        return f"<RemoteGallery {self.name!r}, {len(self)} items of {self._detail.n_labels} labels>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client that opened the gallery."""
        self._client.close()

    def search(self, image: ImageInput, k: int = 10, **options: Unpack[QueryOptions]) -> Answer:
        """Find the items most like an image; see `Gallery.search`.

        Raises
        ------
        TypeError, ValueError : an argument is wrong; the message names it.
        OSError : the file cannot be read.
        VouchProblem : the service refuses the image or the request.
        """
        record = self._client.search(self.name, image, **sent_options(k, options))
        return Answer.of(record, query_name(image), self.thumbnail)

    def search_text(self, text: str, k: int = 10, **options: Unpack[QueryOptions]) -> Answer:
        """Find the items most like a text; see `Gallery.search_text`.

        Raises
        ------
        TypeError, ValueError : an argument is wrong; the message names it.
        VouchProblem : such as ``text_unavailable``.
        """
        sent = sent_options(k, options)
        record = self._client.search_text(self.name, checked_text(text), **sent)
        return Answer.of(record, text, self.thumbnail)

    def search_many(
        self,
        images: str | os.PathLike[str] | Iterable[ImageInput],
        k: int = 10,
        *,
        progress: bool = False,
        n_jobs: int | None = None,
        errors: ErrorChoice = "keep",
        **options: Unpack[QueryOptions],
    ) -> Answers:
        """Search with many images; see `Gallery.search_many`.

        Parameters
        ----------
        n_jobs : number of concurrent searches; if None, 4 searches run concurrently.
        """
        checked_options(k, options)
        return in_threads(
            lambda image: self.search(image, k, **options),
            images_of(images),
            N_REQUESTS if n_jobs is None else n_jobs,
            errors,
            progress=progress,
        )

    def items(self) -> Iterator[schemas.ItemDetail]:
        """Yield all items in the order of their ids; see `Gallery.items`."""
        return self._client.items(self.name)

    def thumbnail(self, item_id: str) -> Picture | None:
        """Return the picture of an item and its media type; None if there is none."""
        try:
            return self._client.thumbnail(self.name, item_id)
        except VouchProblem as problem:
            if problem.status == 404:
                return None
            raise


class AsyncClient:
    """A client of one service for programs that use asyncio.

    >>> async with AsyncClient("http://127.0.0.1:8080") as client:  # doctest: +SKIP
    ...     gallery = await client.open("demo")
    ...     answer = await gallery.search("photo.png", k=5)

    Parameters
    ----------
    url, api_key, timeout_s : see `VouchClient`.
    transport : replaces the network in tests.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx2.AsyncClient(
            base_url=base_of(url),
            headers=headers_of(api_key),
            timeout=timeout_s,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def galleries(self) -> list[schemas.GalleryName]:
        """List the galleries that are served."""
        return (await self._get("/v1/galleries", schemas.GalleryList)).galleries

    async def open(self, gallery: str) -> AsyncGallery:
        """Return a gallery of the service.

        Raises
        ------
        VouchProblem : such as ``gallery_not_found``.
        """
        return AsyncGallery(self, await self._get(path_of(gallery), schemas.GalleryDetail))

    async def _get(self, path: str, answer: type[AnswerT]) -> AnswerT:
        return read(await self._send(self._http.build_request("GET", path)), answer)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, retry it while the service is busy, and return the response."""
        await request.aread()  # a body in memory can be sent again
        attempt = 1
        while True:
            try:
                response = await self._http.send(request)
                if response.is_success:
                    return response
                wait = seconds_to_wait(response, attempt)
            except LOST_CONNECTION as error:
                wait = seconds_to_wait(error, attempt)
            await asyncio.sleep(wait)
            attempt += 1


class AsyncGallery:
    """A gallery of a service, for asyncio; `AsyncClient.open` returns it."""

    def __init__(self, client: AsyncClient, detail: schemas.GalleryDetail) -> None:
        self._client = client
        self._detail = detail

    @property
    def name(self) -> str:
        """The name of the gallery."""
        return self._detail.name

    @property
    def description(self) -> str:
        """The description of the gallery's content."""
        return self._detail.description

    def __len__(self) -> int:
        return self._detail.n_items

    def __repr__(self) -> str:
        return f"<AsyncGallery {self.name!r}, {len(self)} items>"

    async def search(
        self, image: ImageInput, k: int = 10, **options: Unpack[QueryOptions]
    ) -> Answer:
        """Find the items most like an image; see `RemoteGallery.search`."""
        sent = sent_options(k, options)
        file = await asyncio.to_thread(image_file, image)
        request = self._client._http.build_request(
            "POST",
            path_of(self.name, "search"),
            data=fields_of(**sent),
            files=[("image", file)],
        )
        record = read(await self._client._send(request), schemas.SearchAnswer)
        return Answer.of(record, query_name(image), None)

    async def search_text(self, text: str, k: int = 10, **options: Unpack[QueryOptions]) -> Answer:
        """Find the items most like a text; see `RemoteGallery.search_text`."""
        sent = sent_options(k, options)
        request = self._client._http.build_request(
            "POST",
            path_of(self.name, "search", "text"),
            json={"text": checked_text(text), **fields_of(**sent)},
        )
        record = read(await self._client._send(request), schemas.SearchAnswer)
        return Answer.of(record, text, None)

    async def search_many(
        self,
        images: str | os.PathLike[str] | Iterable[ImageInput],
        k: int = 10,
        *,
        progress: bool = False,
        n_jobs: int | None = None,
        errors: ErrorChoice = "keep",
        **options: Unpack[QueryOptions],
    ) -> Answers:
        """Search with many images; see `RemoteGallery.search_many`."""
        checked_options(k, options)
        return await in_turns(
            lambda image: self.search(image, k, **options),
            images_of(images),
            N_REQUESTS if n_jobs is None else n_jobs,
            errors,
            progress=progress,
        )
