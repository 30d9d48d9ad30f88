"""The pool of decoders: a file that crashes, hangs or bloats its decoder costs one request.

A process pool from a library was tried first (pebble 5): its workers share one pipe, and killing
one of them ended the pool. Here every decoder has a socket of its own, so nothing that happens to
one reaches another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import TracebackType
from typing import Annotated, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from model_store.errors import CorruptImage, ImageError, ImageTooCostly
from model_store.gallery import Thumbnail
from model_store.images import (
    ImageLimits,
    Preprocessing,
    check_size,
    decode_image,
    encode_thumbnail,
)
from model_store.images.budget import DecodingBudget
from model_store.quality import MEASURES, quality_measures
from service.decoder_process import DecoderProcess
from service.shared_pixels import SharedPixels

T = TypeVar("T")

logger = logging.getLogger("service")

RETRY_S = 1.0
"""After which a decoder that did not start is started again."""

_ERRORS = {error.__name__: error for error in ImageError.__subclasses__()}


@dataclass(frozen=True, slots=True)
class Prepared:
    """An image file, ready to be encoded.

    Attributes
    ----------
    pixels : (H, W, 3) uint8 at the encoder's input size.
    format, width, height, warnings : as in `model_store.images.DecodedImage`.
    measures : `model_store.quality.quality_measures` of the picture in its own size, where they
        were asked for.
    thumbnail : a small picture of it, likewise.
    """

    pixels: NDArray[np.uint8]
    format: str
    width: int
    height: int
    warnings: tuple[str, ...]
    measures: NDArray[np.float64] | None = None
    thumbnail: Thumbnail | None = None


class Decoder(Protocol):
    """From uploads to the encoder's input."""

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size."""


class ThreadDecoder:
    """Decodes on threads of this process: for images that are trusted, and for tests."""

    def __init__(self, executor: Executor, limits: ImageLimits) -> None:
        self._executor = executor
        self._limits = limits

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size.

        Raises
        ------
        ImageError : the image is empty, too large, damaged, or of another format.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, self._decode, data, preprocessing, measured, thumbnail
        )

    def _decode(
        self, data: bytes, preprocessing: Preprocessing, measured: bool, thumbnail: bool
    ) -> Prepared:
        decoded = decode_image(data, self._limits, preprocessing.smallest_side)
        return Prepared(
            preprocessing(decoded.pixels),
            decoded.format,
            decoded.width,
            decoded.height,
            decoded.warnings,
            quality_measures(decoded.pixels, (decoded.width, decoded.height)) if measured else None,
            Thumbnail(*encode_thumbnail(decoded.pixels)) if thumbnail else None,
        )


class DecoderPool:
    """Decodes image files in processes that can be lost.

    Use it as an asynchronous context; inside, all processes are ready. Requests wait in the order
    they came for a process to be free.

    - An image beyond its `DecodingBudget` is refused as `ImageTooCostly`, and one that crashes its
      decoder as `CorruptImage`; the process is replaced, other requests notice nothing.
    - A decoder that is killed from outside while decoding (SIGKILL: an operator, or the kernel
      short of memory) is not held against the image, which goes to another decoder, once.
    - A request that is cancelled gives up its place at once; a decoder already at work for it
      finishes first, within the budget, because that is cheaper than a new process.

    Parameters
    ----------
    lost : told of every decoder that ended otherwise than by the pool's end.

    Attributes
    ----------
    n_lost : decoders that ended otherwise than by `close`.
    """

    def __init__(
        self,
        n_processes: int = 2,
        limits: ImageLimits | None = None,
        budget: DecodingBudget | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._n_processes = n_processes
        self._limits = limits or ImageLimits()
        self._budget = budget or DecodingBudget()
        self._free: asyncio.Queue[DecoderProcess] = asyncio.Queue()
        self._decoders: set[DecoderProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lost = lost
        self.n_lost = 0

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as starting:
                for _ in range(self._n_processes):
                    starting.create_task(self._start())
        except* (OSError, EOFError) as errors:
            await self._close()
            raise RuntimeError("The image decoders do not start; see the log.") from errors
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
        """Of the decoders, those that are just being started among them."""
        return [decoder.pid for decoder in self._decoders]

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size.

        Raises
        ------
        ImageError : the image is empty, too large, damaged, of another format, or too costly.
        """
        check_size(data, self._limits)
        request = _request(preprocessing, measured=measured, thumbnail=thumbnail)
        outcome = None
        for _ in range(2):
            decoder = await self._take()
            job = self._spawn(self._decode(decoder, data, request, preprocessing))
            outcome = await asyncio.shield(job)
            if outcome is not None:
                break
        if isinstance(outcome, Prepared):
            return outcome
        raise outcome or ImageTooCostly(
            "The process that decoded the image was killed, and so was the next one. "
            "Send a smaller image."
        )

    async def _decode(
        self, decoder: DecoderProcess, data: bytes, request: bytes, preprocessing: Preprocessing
    ) -> Prepared | ImageError | None:
        """What became of an image; None where its decoder was killed from outside."""
        try:
            async with asyncio.timeout(self._budget.clock_s):
                said = await decoder.ask(request, data)
                outcome = _understood(said, decoder.pictures, preprocessing)
        except TimeoutError:
            await self._replace(decoder)
            return self._too_costly()
        except (OSError, EOFError):
            return self._judged(await self._replace(decoder))
        self._free.put_nowait(decoder)
        return outcome

    def _judged(self, exit_status: int) -> ImageError | None:
        """What the end of its decoder says of an image."""
        if exit_status == -signal.SIGKILL:
            return None
        if exit_status == -signal.SIGPROF:
            return self._too_costly()
        return CorruptImage(
            "The image is damaged in a way that made its decoder crash. Send a complete file, "
            "saved anew."
        )

    def _too_costly(self) -> ImageTooCostly:
        return ImageTooCostly(
            f"Decoding the image took more than {self._budget.cpu_s:g} s and was given up. "
            "Send a smaller image, or a plainer kind of file (a baseline JPEG)."
        )

    async def _take(self) -> DecoderProcess:
        """Wait for a decoder that is free, and alive."""
        while True:
            decoder = await self._free.get()
            if decoder.is_alive:
                return decoder
            self._spawn(self._replace(decoder))

    async def _replace(self, decoder: DecoderProcess) -> int:
        """End a decoder, start another in the background; returns the exit status."""
        self._spawn(self._restart())
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
            settings = {"limits": asdict(self._limits), "budget": asdict(self._budget)}
            await decoder.ask(json.dumps(settings).encode(), b"")
        except (OSError, EOFError):
            self._decoders.discard(decoder)
            await decoder.end()
            raise
        self._free.put_nowait(decoder)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background; the event loop itself keeps no task alive."""
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


@lru_cache(maxsize=8)
def _request(preprocessing: Preprocessing, *, measured: bool, thumbnail: bool) -> bytes:
    """The header of what a decoder is asked; the encoders that are served ask for the same."""
    asked = {
        "preprocessing": asdict(preprocessing),
        "measured": measured,
        "thumbnail": thumbnail,
    }
    return json.dumps(asked).encode()


_ONE_EACH = Field(min_length=len(MEASURES), max_length=len(MEASURES))
_Side = Annotated[int, Field(gt=0, lt=2**31)]


class _Said(BaseModel):
    """What a decoder answers, as strictly as if it had been taken over."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Refused(_Said):
    error: str
    detail: str


class _Decoded(_Said):
    format: str
    width: _Side
    height: _Side
    warnings: tuple[str, ...]
    measures: Annotated[list[float], _ONE_EACH] | None = None
    thumbnail: Base64Bytes | None = None


_ANSWER: TypeAdapter[_Decoded | _Refused] = TypeAdapter(_Decoded | _Refused)


def _understood(
    said: bytes, pictures: SharedPixels, preprocessing: Preprocessing
) -> Prepared | ImageError:
    """What a decoder answered.

    Raises
    ------
    EOFError : it says what no decoder says.
    """
    try:
        answer = _ANSWER.validate_json(said)
        if isinstance(answer, _Refused):
            return _ERRORS[answer.error](answer.detail)
    except (ValidationError, KeyError) as error:
        raise EOFError("a decoder answered what is no answer") from error
    return Prepared(
        pictures.read((preprocessing.height, preprocessing.width, 3)),
        answer.format,
        answer.width,
        answer.height,
        answer.warnings,
        None if answer.measures is None else np.array(answer.measures),
        None if answer.thumbnail is None else _thumbnail(answer.thumbnail),
    )


def _thumbnail(data: bytes) -> Thumbnail:
    """What a decoder says is a thumbnail; one that was taken over cannot make it another type."""
    return Thumbnail(data, "image/png" if data.startswith(b"\x89PNG") else "image/jpeg")
