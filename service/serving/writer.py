"""Changing a gallery: images are decoded and embedded as queries are, then all is committed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from model_store.errors import GallerySuperseded
from model_store.gallery import Delete, NewItem, Retry, Upsert, Written
from service import schemas
from service.observability.metrics import Telemetry
from service.serving.engine import SearchEngine
from service.serving.registry import Galleries

logger = logging.getLogger(__name__)

CONCURRENCY = 4
"""Images of a batch that are worked on at the same time, so that queries find their turn."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)
Say = Callable[[Exception], schemas.Problem]


@dataclass(frozen=True, slots=True)
class Upload:
    """An item that is to be there, and its image file."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    data: bytes

    @property
    def digest(self) -> str:
        """A hash of id, label, metadata and image; equal uploads have equal digests."""
        known = json.dumps([self.id, self.label, self.metadata], sort_keys=True)
        return hashlib.sha256(known.encode() + hashlib.sha256(self.data).digest()).hexdigest()


@dataclass(frozen=True, slots=True)
class Asked:
    """The origin of a change.

    Attributes
    ----------
    gallery : name of the gallery.
    request_id : id of this request.
    caller : id of the caller that the Idempotency-Key belongs to.
    key : the Idempotency-Key, if one was sent.
    """

    gallery: str
    request_id: str
    caller: str
    key: str | None

    async def retry(self, operation: str, uploads: Sequence[Upload]) -> Retry | None:
        """Return the identity under which the request may be sent again; None without a key."""
        if self.key is None:
            return None
        named = hashlib.sha256(json.dumps([self.caller, self.key]).encode()).hexdigest()
        digests = await asyncio.to_thread(lambda: [upload.digest for upload in uploads])
        asked = hashlib.sha256(json.dumps([operation, *digests]).encode()).hexdigest()
        return Retry(named, asked)


class ItemWriter:
    """Writes to the galleries that are served.

    Parameters
    ----------
    telemetry : counts what was written.
    """

    def __init__(self, galleries: Galleries, telemetry: Telemetry) -> None:
        self._galleries = galleries
        self._telemetry = telemetry

    async def put(self, asked: Asked, upload: Upload) -> schemas.ItemWritten:
        """Write one item.

        Raises
        ------
        ImageError, EncoderError : the image cannot be embedded.
        WriteError : nothing was changed.
        """
        retry = await asked.retry("put", [upload])

        async def embedded(engine: SearchEngine) -> Sequence[Upsert]:
            return [await _embedded(engine, upload)]

        def told(outcomes: list[Written]) -> str:
            return _written(asked, outcomes[0]).model_dump_json()

        return await self._commit(asked, retry, embedded, told, schemas.ItemWritten)

    async def delete(self, asked: Asked, item_id: str) -> schemas.ItemWritten:
        """Remove one item.

        Raises
        ------
        ItemNotFound
        WriteError : nothing was changed.
        """
        retry = await asked.retry(f"delete {item_id}", [])

        async def nothing_to_do(_: SearchEngine) -> Sequence[Delete]:
            return [Delete(item_id)]

        def told(outcomes: list[Written]) -> str:
            return _written(asked, outcomes[0]).model_dump_json()

        return await self._commit(asked, retry, nothing_to_do, told, schemas.ItemWritten)

    async def put_batch(
        self, asked: Asked, uploads: Sequence[Upload], say: Say
    ) -> schemas.BatchWritten:
        """Write several items: those whose image can be embedded, in one transaction.

        Parameters
        ----------
        say : an error, as the problem that an item is answered with.

        Raises
        ------
        WriteError : nothing was changed.
        """
        retry = await asked.retry("put_batch", uploads)
        problems: dict[int, schemas.Problem] = {}

        async def embedded(engine: SearchEngine) -> Sequence[Upsert]:
            problems.clear()
            turns = asyncio.Semaphore(CONCURRENCY)

            async def one(index: int, upload: Upload) -> Upsert | None:
                async with turns:
                    try:
                        return await _embedded(engine, upload)
                    except Exception as error:  # of any kind: the others are to be written
                        problems[index] = say(error)
                        return None

            found = await asyncio.gather(*(one(i, upload) for i, upload in enumerate(uploads)))
            return [upsert for upsert in found if upsert is not None]

        def told(outcomes: list[Written]) -> str:
            rest = iter(outcomes)
            items = [
                _entry(asked, i, upload.id, problems.get(i), rest)
                for i, upload in enumerate(uploads)
            ]
            answer = schemas.BatchWritten(
                request_id=asked.request_id, gallery=asked.gallery, items=items
            )
            return answer.model_dump_json()

        return await self._commit(asked, retry, embedded, told, schemas.BatchWritten)

    async def _commit(
        self,
        asked: Asked,
        retry: Retry | None,
        prepare: Callable[[SearchEngine], Awaitable[Sequence[Upsert | Delete]]],
        told: Callable[[list[Written]], str],
        answer: type[AnswerT],
    ) -> AnswerT:
        """Prepare what is to be written, and write it; once more where the bundle was exchanged."""
        try:
            text = await self._try(asked, retry, prepare, told)
        except GallerySuperseded:
            text = await self._try(asked, retry, prepare, told)
        return answer.model_validate_json(text)

    async def _try(
        self,
        asked: Asked,
        retry: Retry | None,
        prepare: Callable[[SearchEngine], Awaitable[Sequence[Upsert | Delete]]],
        told: Callable[[list[Written]], str],
    ) -> str:
        async with self._galleries.lease(asked.gallery) as lease:
            live = lease.bundle.require_live()
            before = None if retry is None else await asyncio.to_thread(live.outcome, retry)
            if before is not None:
                return before
            writes = await prepare(lease.engine)
            if not writes:
                return told([])
            text = await self._galleries.commit(asked.gallery, writes, retry, told)
        n_put = sum(isinstance(write, Upsert) for write in writes)
        self._telemetry.written(asked.gallery, n_put, len(writes) - n_put)
        fields = {"gallery": asked.gallery, "put": n_put, "deleted": len(writes) - n_put}
        logger.info("items written", extra={"fields": fields})
        return text


async def _embedded(engine: SearchEngine, upload: Upload) -> Upsert:
    vector, thumbnail = await engine.encode_item(upload.data)
    return Upsert(NewItem(upload.id, upload.label, upload.metadata, thumbnail), vector)


def _written(asked: Asked, outcome: Written) -> schemas.ItemWritten:
    return schemas.ItemWritten(
        request_id=asked.request_id,
        gallery=asked.gallery,
        id=outcome.id,
        existed=outcome.existed,
        version=outcome.version,
    )


def _entry(
    asked: Asked, index: int, item_id: str, problem: schemas.Problem | None, rest: Iterator[Written]
) -> schemas.BatchItemWritten:
    written = None if problem is not None else _written(asked, next(rest))
    status = 200 if problem is None else problem.status
    return schemas.BatchItemWritten(
        index=index, id=item_id, status=status, written=written, problem=problem
    )
