"""A trial of how many processes pay: a service of one, asked by itself and by nobody else."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
from starlette.types import ASGIApp, Message

from model_store.bundles.bundle import Bundle
from model_store.encoder.contract import Encoder
from model_store.errors import EncoderError
from model_store.images import encode_thumbnail
from model_store.processors import PROVIDERS, usable_processors
from service.app import create_app
from service.encoding.batch_size import Batches
from service.encoding.queues import BatchLimits, batches_of
from service.settings import Settings

logger = logging.getLogger("service")

N_WARM_UP, N_QUERIES, N_TURNS = 10, 50, 3
"""Queries, and turns of the encoder, that are measured, the first after a warm-up."""

LONGEST_S = 3.0
"""Seconds after which fewer queries will do."""

TOLERANCE = 0.1
"""Part of a process for which none is started: 100 MB for less than a tenth."""

NOTHING_KEPT: dict[str, Any] = {
    "host": "127.0.0.1", "published_host": None, "keys": None, "allowed_hosts": (),
    "redis_url": None, "cache_bytes": 0, "rate_limit": None, "feedback": None,
    "review_reasons": (), "galleries": None, "otlp_endpoint": None, "recalibrate": False,
    "compact_after": 0,
}  # fmt: skip
"""Settings with which nothing is written, remembered or refused; nobody else can ask."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs that decide how many processes pay.

    Attributes
    ----------
    answering_s : processor time that a process takes for a query, without encoding.
    encoded_per_s : images that the encoder embeds while nobody waits for a process.
    encodes_beside : whether the encoder computes on the processors that answer too.
    """

    answering_s: float
    encoded_per_s: float
    encodes_beside: bool

    def useful_processes(self, n_processors: int) -> int:
        """Return how many processes together keep the encoder, or all processors, busy.

        One process uses one processor, and answers 1 / answering queries a second. Where c
        processors answer and encode, all together answer c / (answering + encoding). In front of a
        GPU they answer as many as it encodes, and c / answering at most.
        """
        if self.encodes_beside:
            per_s = n_processors / (self.answering_s + n_processors / self.encoded_per_s)
        else:
            per_s = min(self.encoded_per_s, n_processors / self.answering_s)
        wanted = math.ceil(per_s * self.answering_s - TOLERANCE)
        return max(1, min(n_processors, wanted))


def useful_processes(settings: Settings, bundle: Bundle) -> int:
    """Ask a bundle for images that nobody has seen; return how many processes pay.

    Raises
    ------
    EncoderError : a query is not answered.
    """
    n_processors = usable_processors()
    encoder = bundle.retriever.encoder
    if not encoder.metadata.takes_images:  # vectors cost the encoder nothing
        return n_processors
    costs = Costs(
        encoded_per_s=_encoded_per_s(encoder, batches_of(encoder, BatchLimits.of(settings))),
        encodes_beside=encoder.provider == PROVIDERS["cpu"],
        answering_s=asyncio.run(_answering_s(settings, bundle)),
    )
    found = costs.useful_processes(n_processors)
    fields = {
        "processes": found,
        "processors": n_processors,
        "answering_ms": round(1000 * costs.answering_s, 2),
        "encoded_per_s": round(costs.encoded_per_s, 1),
    }
    logger.info("processes chosen", extra={"fields": fields})
    return found


def _encoded_per_s(encoder: Encoder, batches: Batches) -> float:
    n = batches.size * batches.turn
    images = np.zeros((n, *encoder.metadata.input.shape), encoder.metadata.input.dtype)
    seconds = []
    for _ in range(1 + N_TURNS):
        started = time.perf_counter()
        encoder.encode(images, batches.size)
        seconds.append(time.perf_counter() - started)
    return n / min(seconds[1:])


async def _answering_s(settings: Settings, bundle: Bundle) -> float:
    """Measure this process's processor time for a query: HTTP's layers, search and decision."""
    side = bundle.retriever.encoder.metadata.preprocessing.smallest_side or 1
    picture, _ = encode_thumbnail(np.zeros((side, side, 3), np.uint8))
    path = f"/v1/galleries/{bundle.name}/search/raw"
    app = create_app(settings.model_copy(update=NOTHING_KEPT), [bundle])
    level = logger.level
    logger.setLevel(logging.WARNING)  # these requests are nobody's
    try:
        async with _Running(app):
            for _ in range(N_WARM_UP):
                await _ask(app, path, picture)
            n, began, computed = 0, time.monotonic(), time.process_time()
            while n < N_QUERIES and time.monotonic() < began + LONGEST_S:
                await _ask(app, path, picture)
                n += 1
            return (time.process_time() - computed) / n
    finally:
        logger.setLevel(level)


class _Running:
    """An application between its start and its end, as ASGI's `lifespan` has them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._asked: asyncio.Queue[Message] = asyncio.Queue()
        self._said: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._lifespan = asyncio.ensure_future(self._app(scope, self._asked.get, self._said.put))
        await self._step("startup")

    async def __aexit__(self, *_: object) -> None:
        await self._step("shutdown")
        await self._lifespan

    async def _step(self, name: str) -> None:
        await self._asked.put({"type": f"lifespan.{name}"})
        said = asyncio.ensure_future(self._said.get())
        await asyncio.wait({said, self._lifespan}, return_when=asyncio.FIRST_COMPLETED)
        if not said.done() or said.result()["type"] != f"lifespan.{name}.complete":
            said.cancel()
            await self._lifespan  # raises what it failed over
            raise EncoderError(f"The service does not try out how many processes pay: {name}.")


async def _ask(app: ASGIApp, path: str, picture: bytes) -> None:
    """Search with ``picture``, as a client that nobody else is.

    Raises
    ------
    EncoderError : it was not answered.
    """
    body = picture + uuid.uuid4().bytes  # nothing of it is cached
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [
            (b"host", b"127.0.0.1"), (b"content-type", b"application/octet-stream"),
            (b"content-length", str(len(body)).encode()),
        ],
    }  # fmt: skip
    unread: Iterator[Message] = iter([{"type": "http.request", "body": body}])
    said: list[Message] = []

    async def receive() -> Message:
        for message in unread:
            return message
        return await asyncio.Future()  # the client stays

    async def send(message: Message) -> None:
        said.append(message)

    await app(scope, receive, send)
    if said[0]["status"] != HTTPStatus.OK:
        raise EncoderError(f"A query that tries out the service was answered {said[0]['status']}.")
