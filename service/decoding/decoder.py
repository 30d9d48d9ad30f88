"""Decodes uploaded images: in threads, or in a pool of disposable processes.

In the pool, a file that breaks its decoder fails only its own request. The library pebble (version
5) is not used: its pool has one pipe for all workers, and ends when a worker is killed. Here every
decoder has its own socket, so decoders fail independently.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Literal, Protocol, Self

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
    encode_preview,
    encode_thumbnail,
)
from model_store.images.decode import DecodingBudget
from model_store.images.quality import MEASURES, quality_measures
from model_store.machine import malloc_environment
from service.decoding.sandbox import PARTS, SandboxMode
from service.decoding.worker import PREFIX
from service.scheduling import FairShare, Tasks
from service.shared_pixels import SharedPixels

logger = logging.getLogger("service")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decoded image, ready for the encoder.

    Attributes
    ----------
    pixels : (H, W, 3) uint8 at the encoder's input size.
    format, width, height, warnings : as in `model_store.images.DecodedImage`.
    measures : `model_store.images.quality.quality_measures` of the picture in its own size, if
        requested.
    thumbnail : a small version of the image.
    preview : a larger version, JPEG; see `encode_preview`.
    """

    pixels: NDArray[np.uint8]
    format: str
    width: int
    height: int
    warnings: tuple[str, ...]
    measures: NDArray[np.float64] | None = None
    thumbnail: Thumbnail | None = None
    preview: bytes = b""


class Decoder(Protocol):
    """Decodes uploaded images to arrays that the encoder takes as input.

    Attributes
    ----------
    sandbox : parts of the sandbox in force.
    shares : scheduler of the decoder's processes; idle while no image is being decoded.
    """

    sandbox: tuple[str, ...]
    shares: tuple[FairShare, ...]

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
        preview_side: int | None = None,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size."""


class ThreadDecoder:
    """Decodes on threads of this process, for trusted images and tests."""

    sandbox: tuple[str, ...] = ()
    shares: tuple[FairShare, ...] = ()

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
        preview_side: int | None = None,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size.

        Raises
        ------
        ImageError : the image is empty, too large, damaged or in an unsupported format.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, self._decode, data, preprocessing, measured, thumbnail, preview_side
        )

    def _decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        measured: bool,
        thumbnail: bool,
        preview_side: int | None,
    ) -> Prepared:
        def again(side: int) -> NDArray[np.uint8]:
            return decode_image(data, self._limits, side).pixels

        decoded = decode_image(data, self._limits, preprocessing.smallest_side)
        return Prepared(
            preprocessing(decoded.pixels),
            decoded.format,
            decoded.width,
            decoded.height,
            decoded.warnings,
            quality_measures(decoded.pixels, (decoded.width, decoded.height)) if measured else None,
            Thumbnail(*encode_thumbnail(decoded.pixels)) if thumbnail else None,
            encode_preview(decoded.pixels, preview_side, again),
        )


_ERRORS = {error.__name__: error for error in ImageError.__subclasses__()}


@lru_cache(maxsize=8)
def request_message(
    preprocessing: Preprocessing, *, measured: bool, thumbnail: bool, preview_side: int | None
) -> bytes:
    """Return the header of a request to a decoder."""
    header = {
        "preprocessing": asdict(preprocessing),
        "measured": measured,
        "thumbnail": thumbnail,
        "preview_side": preview_side,
    }
    return json.dumps(header).encode()


_ONE_EACH = Field(min_length=len(MEASURES), max_length=len(MEASURES))
_Side = Annotated[int, Field(gt=0, lt=2**31)]


class _Reply(BaseModel):
    """A decoder's reply, validated strictly: a malicious file may control the decoder."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Refused(_Reply):
    error: str
    detail: str


class _Decoded(_Reply):
    format: str
    width: _Side
    height: _Side
    warnings: tuple[str, ...]
    measures: Annotated[list[float], _ONE_EACH] | None = None
    thumbnail: Base64Bytes | None = None
    preview: Base64Bytes = b""


class _Started(_Reply):
    sandbox: list[Literal["seccomp", "landlock"]]


_ANSWER: TypeAdapter[_Decoded | _Refused] = TypeAdapter(_Decoded | _Refused)


def read_started(message: bytes) -> tuple[str, ...]:
    """Read the first message of a decoder: the parts of the sandbox that are in force.

    Raises
    ------
    EOFError : the message is not valid.
    """
    try:
        return tuple(_Started.model_validate_json(message).sandbox)
    except ValidationError as error:
        raise EOFError("a decoder sent a malformed answer") from error


def read_reply(
    message: bytes, pictures: SharedPixels, preprocessing: Preprocessing
) -> Prepared | ImageError:
    """Read a decoder's reply.

    The reply is validated strictly: the process parses hostile files and may have been compromised.

    Raises
    ------
    EOFError : the reply is not valid.
    """
    try:
        answer = _ANSWER.validate_json(message)
        if isinstance(answer, _Refused):
            return _ERRORS[answer.error](answer.detail)
    except (ValidationError, KeyError) as error:
        raise EOFError("a decoder sent a malformed answer") from error
    return Prepared(
        pictures.read((preprocessing.height, preprocessing.width, 3)),
        answer.format,
        answer.width,
        answer.height,
        answer.warnings,
        None if answer.measures is None else np.array(answer.measures),
        None if answer.thumbnail is None else _thumbnail(answer.thumbnail),
        answer.preview,
    )


def _thumbnail(data: bytes) -> Thumbnail:
    """Return a thumbnail; its media type follows from its bytes, and is never sent by a decoder."""
    return Thumbnail(data, "image/png" if data.startswith(b"\x89PNG") else "image/jpeg")


WORKER = "service.decoding.worker"

_MAX_HEADER = 2**21
"""Maximum size of the JSON in bytes. For an image of noise, the preview takes 1,060,000 bytes, and
the thumbnail takes 27,000."""

_AT_ONCE = 2**16


class DecoderProcess:
    """One decoder process, its socket, and the shared memory of its pictures."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self.pictures = SharedPixels()
        numbers = [theirs.fileno(), self.pictures.fileno()]
        with theirs:
            # multiprocessing would import the main module again, which is the whole service.
            self._process = subprocess.Popen(  # noqa: S603 # no argument comes from a request
                [
                    sys.executable,
                    "-P",
                    "-W",
                    "ignore",
                    "-m",
                    WORKER,
                    *map(str, numbers),
                ],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
            )

    @property
    def pid(self) -> int:
        """The id of the decoder's process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    async def ask(self, header: bytes, data: bytes) -> bytes:
        """Send one message and wait for its answer.

        Parameters
        ----------
        header : the request, as JSON.
        data : its binary data.

        Returns
        -------
        The reply. It is not always JSON, because an attacker may control the decoder.

        Raises
        ------
        OSError, EOFError : the process has ended, or its reply is too long.
        """
        loop = asyncio.get_running_loop()
        prefix = PREFIX.pack(len(header), len(data))
        if len(data) <= _AT_ONCE:
            await loop.sock_sendall(self._socket, prefix + header + data)
        else:
            await loop.sock_sendall(self._socket, prefix + header)
            await loop.sock_sendall(self._socket, data)  # no copy of the data
        answer = bytearray(await self._received(PREFIX.size))
        n_header, n_data = PREFIX.unpack_from(answer)
        if n_header > _MAX_HEADER or n_data:
            raise EOFError(f"a decoder announced {n_header} and {n_data} bytes")
        while len(answer) < PREFIX.size + n_header:
            answer += await self._received(1)
        return bytes(answer[PREFIX.size :])

    async def end(self) -> int:
        """Kill the process if it still runs; return its exit status."""
        self._socket.close()
        self.pictures.close()
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)

    async def _received(self, n_least: int) -> bytes:
        """Receive at least ``n_least`` bytes from the process."""
        loop = asyncio.get_running_loop()
        received = b""
        while len(received) < n_least:
            more = await loop.sock_recv(self._socket, _AT_ONCE)
            if not more:
                raise EOFError("a decoder has ended")
            received += more
        return received


def _environment() -> dict[str, str]:
    """Return a decoder's environment: its import paths, and none of the service's secrets."""
    # The same OpenBLAS core type as in the service: otherwise sums differ in the last digit.
    kept = ("LD_LIBRARY_PATH", "PYTHONHOME", "LANG", "OPENBLAS_CORETYPE")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",  # more threads would only use memory
        **malloc_environment(),  # halves the decoding time
    }


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
        self._tasks = Tasks()
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

    async def __aexit__(self, *_: object) -> None:
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
            job = self._tasks.start(self._decode(who, data, request, preprocessing))
            outcome = await asyncio.shield(job)
            if outcome is not None:
                break
        if isinstance(outcome, Prepared):
            return outcome
        raise outcome or ImageTooCostly(
            "Two processes were killed while they decoded the image. Use a smaller image."
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
            "Use a smaller image, or a plainer kind of file (a baseline JPEG)."
        )

    async def _take(self) -> DecoderProcess:
        """Wait for a free, running decoder."""
        while True:
            decoder = await self._free.get()
            if decoder.is_alive:
                return decoder
            self._tasks.start(self._replace(decoder))

    async def _replace(self, decoder: DecoderProcess, who: str | None = None) -> int:
        """End a decoder and return its exit status; start a new decoder in the background.

        Parameters
        ----------
        who : account of a caller that holds a place among the decoders; the place is released when
            the new decoder is ready. None if no place has to be released.
        """
        restarted = self._tasks.start(self._restart())
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

    async def _close(self) -> None:
        await self._tasks.cancel()
        await asyncio.gather(*(decoder.end() for decoder in self._decoders))
        self._decoders.clear()
