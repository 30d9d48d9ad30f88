"""Changes a gallery: decodes and embeds images like queries, then commits all writes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_store.errors import DatasetError, GallerySuperseded, InvalidRequest
from model_store.gallery import (
    Delete,
    Edit,
    ItemFields,
    NewItem,
    Receipt,
    Retry,
    Upsert,
    Write,
)
from model_store.truth import place_in
from service.observability.metrics import Telemetry, counted_as
from service.serving.engine import SearchEngine
from service.serving.lease import Lease
from service.serving.registry import Galleries

logger = logging.getLogger(__name__)

CONCURRENCY = 4
"""Maximum number of images of one batch that are processed at a time, so that queries do not wait
long."""

ToProblem = Callable[[Exception], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Upload:
    """An item to write, and its image file."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    data: bytes

    @property
    def digest(self) -> str:
        """A hash of id, label, metadata and image."""
        known = json.dumps([self.id, self.label, self.metadata], sort_keys=True)
        return hashlib.sha256(known.encode() + hashlib.sha256(self.data).digest()).hexdigest()

    async def embedded(self, engine: SearchEngine) -> Upsert:
        """Decode and embed the image like a query; return the write of the item."""
        vector, thumbnail, preview = await engine.encode_item(self.data)
        return Upsert(NewItem(self.id, self.label, self.metadata, thumbnail, preview), vector)


@dataclass(frozen=True, slots=True)
class WriteContext:
    """The origin of a change.

    Attributes
    ----------
    request_id : id of this request.
    caller : id of the caller, to whom the Idempotency-Key belongs.
    key : the Idempotency-Key, if one was sent.
    most_items : maximum number of items in a gallery, for this caller; None for no maximum.
    """

    request_id: str
    caller: str
    key: str | None
    most_items: int | None = None

    async def retry(self, operation: str, uploads: Sequence[Upload]) -> Retry | None:
        """Return the request's identity, by which a retry is recognised; None without a key."""
        if self.key is None:
            return None
        key = hashlib.sha256(json.dumps([self.caller, self.key]).encode()).hexdigest()
        digests = await asyncio.to_thread(lambda: [upload.digest for upload in uploads])
        request = hashlib.sha256(json.dumps([operation, *digests]).encode()).hexdigest()
        return Retry(key, request)


@dataclass(frozen=True, slots=True)
class PreparedWrites:
    """The writes of a request, and the problems of the uploads that failed.

    Attributes
    ----------
    problems : problem of each failed upload, by its position.
    """

    writes: Sequence[Write]
    problems: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


Prepare = Callable[[SearchEngine], Awaitable[PreparedWrites]]


class ItemWriter:
    """Writes to the served galleries; raises `GalleryUnavailable` like `Writable`.

    Parameters
    ----------
    telemetry : counts the written items.
    """

    def __init__(self, galleries: Galleries, telemetry: Telemetry) -> None:
        self._galleries = galleries
        self._telemetry = telemetry

    async def put(self, lease: Lease, context: WriteContext, upload: Upload) -> Receipt:
        """Write one item.

        Raises
        ------
        ImageError, EncoderError : the image cannot be embedded.
        WriteError : nothing was changed.
        """

        async def prepared(engine: SearchEngine) -> PreparedWrites:
            return PreparedWrites([await upload.embedded(engine)])

        return await self.write(lease, context, "put", prepared, [upload])

    async def delete(self, lease: Lease, context: WriteContext, item_id: str) -> Receipt:
        """Remove one item.

        Raises
        ------
        ItemNotFound
        WriteError : nothing was changed.
        """
        return await self.write(lease, context, f"delete {item_id}", _just(Delete(item_id)))

    async def edit(
        self, lease: Lease, context: WriteContext, item_id: str, fields: ItemFields
    ) -> Receipt:
        """Change the label or metadata of one item.

        Raises
        ------
        ItemNotFound
        WriteError : nothing was changed.
        """
        operation = f"edit {json.dumps([item_id, fields], sort_keys=True)}"
        return await self.write(lease, context, operation, _just(Edit(item_id, fields)))

    async def put_batch(
        self,
        lease: Lease,
        context: WriteContext,
        uploads: Sequence[Upload],
        to_problem: ToProblem,
    ) -> Receipt:
        """Write all items whose image can be embedded, in one transaction.

        The note in the receipt lists the ``problems`` of items that were not written, by position.

        Parameters
        ----------
        to_problem : converts an error to JSON.

        Raises
        ------
        WriteError : nothing was changed.
        """

        async def prepared(engine: SearchEngine) -> PreparedWrites:
            turns = asyncio.Semaphore(CONCURRENCY)
            problems: dict[int, Mapping[str, Any]] = {}

            async def one(index: int, upload: Upload) -> Upsert | None:
                async with turns:
                    try:
                        _require_position(engine, upload.id, upload.metadata)
                        return await upload.embedded(engine)
                    except Exception as error:  # the other items must be written
                        problems[index] = to_problem(error)
                        return None

            found = await asyncio.gather(*(one(i, upload) for i, upload in enumerate(uploads)))
            return PreparedWrites([upsert for upsert in found if upsert is not None], problems)

        return await self.write(lease, context, "put_batch", prepared, uploads)

    async def write(
        self,
        lease: Lease,
        context: WriteContext,
        operation: str,
        prepare: Prepare,
        uploads: Sequence[Upload] = (),
    ) -> Receipt:
        """Prepare and commit the writes of a request; retry once if the bundle was replaced.

        Parameters
        ----------
        operation, uploads : identify the request, together with the Idempotency-Key.
        prepare : returns the writes; not called if the request was carried out before.

        Raises
        ------
        InvalidRequest : matches are defined by distance, and the position of an item is invalid.
        WriteError : nothing was changed.
        """
        retry = await context.retry(operation, uploads)
        try:
            return await self._commit(lease, context, retry, prepare)
        except GallerySuperseded:
            async with self._galleries.lease(lease.bundle.name) as newer:
                return await self._commit(newer, context, retry, prepare)

    async def _commit(
        self, lease: Lease, context: WriteContext, retry: Retry | None, prepare: Prepare
    ) -> Receipt:
        live = lease.bundle.require_live()
        before = None if retry is None else await asyncio.to_thread(live.receipt, retry)
        if before is not None:
            return before
        prepared = await prepare(lease.engine)
        writes = prepared.writes
        for write in writes:
            if isinstance(write, Upsert):
                _require_position(lease.engine, write.item.id, write.item.metadata)
            elif isinstance(write, Edit):
                _require_position(lease.engine, write.id, write.fields.get("metadata"))
        note = {
            "request_id": context.request_id,
            "problems": {str(place): problem for place, problem in prepared.problems.items()},
        }
        if not writes:
            return Receipt((), note)
        receipt = await self._galleries.commit(lease, writes, retry, note, context.most_items)
        n_put = sum(not isinstance(write, Delete) for write in writes)
        self._telemetry.written(counted_as(lease.bundle), n_put, len(writes) - n_put)
        fields = {"gallery": lease.bundle.name, "put": n_put, "deleted": len(writes) - n_put}
        logger.info("items written", extra={"fields": fields})
        return receipt


def _require_position(
    engine: SearchEngine, item_id: str, metadata: Mapping[str, Any] | None
) -> None:
    """Raise `InvalidRequest` if matches are defined by distance, and the position is invalid."""
    calibration = engine.bundle.retriever.calibration
    if calibration is None or calibration.within is None or metadata is None:
        return
    try:
        place_in(metadata, f"The item {item_id!r}")
    except DatasetError as error:
        raise InvalidRequest(str(error)) from error


def _just(write: Write) -> Prepare:
    """Return a function that prepares one write."""

    async def prepared(_: SearchEngine) -> PreparedWrites:
        return PreparedWrites([write])

    return prepared
