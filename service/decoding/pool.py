"""The pool of decoders; if a file crashes, hangs or exhausts its decoder, only one request fails.

The library pebble (version 5) is not used: its pool has one pipe for all workers, and ends when a
worker is killed. Here every decoder has its own socket, so decoders fail independently.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self, TypeVar

from model_store.errors import CorruptImage, ImageError, ImageTooCostly
from model_store.images import ImageLimits, Preprocessing, check_size
from model_store.images.budget import DecodingBudget
from service.decoding.decoder import Prepared
from service.decoding.process import DecoderProcess, read_reply, read_started, request_message
from service.decoding.sandbox import PARTS, SandboxMode
from service.fair_share import FairShare

T = TypeVar("T")

logger = logging.getLogger("service")

RETRY_S = 1.0
"""Delay in seconds before the service again starts a decoder that failed to start."""


class DecoderPool:
    """Decodes image files in disposable processes.

    Use the pool as an asynchronous context manager; inside the context, all processes are ready.
    Requests wait for a free process. Callers take turns, and the requests of one caller are
    processed in their order. If there are several processes, one caller never occupies all of them.

    - An image beyond its `DecodingBudget` is refused as `ImageTooCostly`. An image that crashes its
      decoder is refused as `CorruptImage`. The process is replaced; other requests are not
      affected.
    - If an operator or the kernel kills a decoder (SIGKILL, for example because memory runs out),
      another decoder gets the image. If that decoder is killed too, the image is refused.
    - A cancelled request leaves the queue. If a decoder already works on the request's image, it
      continues within the budget, because a new process would cost more.

    Parameters
    ----------
    lost : called for each decoder that ends before the pool is closed.
    sandbox : whether decoders may start although the kernel cannot confine them.

    Attributes
    ----------
    n_lost : number of decoders that ended before `close`.
    sandbox : the parts of `service.decoding.sandbox.PARTS` that are in force.
    shares : scheduler of the decoders, fair between callers.
    """

    def __init__(
        self,
        n_processes: int = 2,
        limits: ImageLimits | None = None,
        budget: DecodingBudget | None = None,
        lost: Callable[[], None] = lambda: None,
        sandbox: SandboxMode = "available",
    ) -> None:
        self._n_processes = n_processes
        self._limits = limits or ImageLimits()
        self._budget = budget or DecodingBudget()
        self._share = FairShare(n_processes)
        self.shares: tuple[FairShare, ...] = (self._share,)
        self._free: asyncio.Queue[DecoderProcess] = asyncio.Queue()
        self._decoders: set[DecoderProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lost = lost
        self._sandbox = sandbox
        self.sandbox: tuple[str, ...] = ()
        self.n_lost = 0

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as starting:
                for _ in range(self._n_processes):
                    starting.create_task(self._start())
        except* (OSError, EOFError) as errors:
            await self._close()
            raise RuntimeError("The image decoders do not start; see the log.") from errors
        if self._sandbox != "off" and set(self.sandbox) < set(PARTS):
            fields = {"missing": sorted(set(PARTS) - set(self.sandbox))}
            logger.warning("decoders are not fully confined", extra={"fields": fields})
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def pids(self) -> list[int]:
        """The process ids of the decoders, including those that are still starting."""
        return [decoder.pid for decoder in self._decoders]

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
        preview_side: int | None = None,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size.

        Raises
        ------
        ImageError : the image is empty, too large, damaged, too costly or in an unsupported format.
        """
        check_size(data, self._limits)
        request = request_message(
            preprocessing, measured=measured, thumbnail=thumbnail, preview_side=preview_side
        )
        outcome = None
        for _ in range(2):
            who = await self._share.enter()
            job = self._spawn(self._decode(who, data, request, preprocessing))
            outcome = await asyncio.shield(job)
            if outcome is not None:
                break
        if isinstance(outcome, Prepared):
            return outcome
        raise outcome or ImageTooCostly(
            "Two processes were killed while they decoded the image. Send a smaller image."
        )

    async def _decode(
        self, who: str, data: bytes, request: bytes, preprocessing: Preprocessing
    ) -> Prepared | ImageError | None:
        """Decode an image; return None if SIGKILL ended its decoder."""
        decoder = await self._take()
        try:
            async with asyncio.timeout(self._budget.clock_s):
                reply = await decoder.ask(request, data)
                outcome = read_reply(reply, decoder.pictures, preprocessing)
        except TimeoutError:
            await self._replace(decoder, who)
            return self._too_costly()
        except (OSError, EOFError):
            return self._judged(await self._replace(decoder, who))
        self._free.put_nowait(decoder)
        self._share.leave(who)
        return outcome

    def _judged(self, exit_status: int) -> ImageError | None:
        """Return the error of an image that ended its decoder; None if SIGKILL ended it."""
        if exit_status == -signal.SIGKILL:
            return None
        if exit_status == -signal.SIGPROF:
            return self._too_costly()
        return CorruptImage(
            "The decoder crashed, because the image file is damaged. Open and save the image "
            "again, and send the new file."
        )

    def _too_costly(self) -> ImageTooCostly:
        return ImageTooCostly(
            f"Decoding the image took more than {self._budget.cpu_s:g} s and was given up. "
            "Send a smaller image, or a plainer kind of file (a baseline JPEG)."
        )

    async def _take(self) -> DecoderProcess:
        """Wait for a free, running decoder."""
        while True:
            decoder = await self._free.get()
            if decoder.is_alive:
                return decoder
            self._spawn(self._replace(decoder))

    async def _replace(self, decoder: DecoderProcess, who: str | None = None) -> int:
        """End a decoder and return its exit status; start a new decoder in the background.

        Parameters
        ----------
        who : account of a caller that holds a place among the decoders; the place is released when
            the new decoder is ready. None if no place has to be released.
        """
        restarted = self._spawn(self._restart())
        if who is not None:
            restarted.add_done_callback(lambda _: self._share.leave(who))
        exit_status = await decoder.end()
        self._decoders.discard(decoder)
        self.n_lost += 1
        self._lost()
        logger.warning("decoder lost", extra={"fields": {"exit_status": exit_status}})
        return exit_status

    async def _restart(self) -> None:
        while True:
            try:
                return await self._start()
            except (OSError, EOFError):
                logger.exception("decoder does not start")
                await asyncio.sleep(RETRY_S)

    async def _start(self) -> None:
        decoder = DecoderProcess()
        self._decoders.add(decoder)
        try:
            settings = {
                "limits": asdict(self._limits),
                "budget": asdict(self._budget),
                "sandbox": self._sandbox,
            }
            reply = await decoder.ask(json.dumps(settings).encode(), b"")
        except (OSError, EOFError):
            self._decoders.discard(decoder)
            await decoder.end()
            raise
        self.sandbox = read_started(reply)
        self._free.put_nowait(decoder)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` as a stored task; the event loop has only a weak reference to the task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(decoder.end() for decoder in self._decoders))
        self._decoders.clear()
