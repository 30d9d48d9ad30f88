"""Runs the encoder in a separate process, so that a crash of the encoder does not end the service.

ONNX Runtime or a GPU driver can crash, and a crash ends the whole process. The encoder therefore
runs in a child process, which starts at `main`. After a crash, the images in progress get an error,
and the child restarts.

A single batch is fastest if all threads share it. But these threads wait for each other in every
layer. Therefore several batches finish sooner if each batch has its own thread (`SideBySide`).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from model_store.encoder.contract import Embeddings, Encoder, EncoderFacts, EncoderProxy, Inputs
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import EncoderError, EncoderStopped, EncodingFailed, VouchError
from model_store.machine import PROVIDERS, ProviderChoice, large_pages, usable_processors
from service.observability.logs import log_as_json
from service.shared_pixels import SharedPixels

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Timeout for loading the encoder, in seconds; the first load of CUDA's libraries is slow."""

ENCODE_TIMEOUT_S = 30.0
"""Timeout of one call of `encode`, in seconds; then the process is killed."""


class EncoderProcess(EncoderProxy):
    """An `Encoder` that runs `OnnxEncoder` in a child process. Threads can share it.

    The child ends with this process, even if this process is killed: the child's pipe then closes.

    Parameters
    ----------
    file : file of the encoder, or a function that returns it at each start of the child.
    provider, threads, cuda_graphs : as for `OnnxEncoder`.

    Raises
    ------
    EncoderError : `OnnxEncoder` raises it, or the child does not start.
    """

    def __init__(
        self,
        file: Path | Callable[[], Path],
        provider: ProviderChoice = "auto",
        threads: int = 0,
        *,
        cuda_graphs: bool = False,
    ) -> None:
        self._file, self._options = file, (provider, threads, cuda_graphs)
        self._lock = threading.Lock()
        self._closed = False
        self._start()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The id of the encoder's process."""
        return self._process.pid

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images``; first restart the child if it has died.

        Raises
        ------
        EncoderStopped : the child died or hung during the call, or does not start again.
        EncodingFailed : the encoder refused the images; the child still runs.
        """
        with self._lock:
            if self._closed:
                raise EncoderStopped("The encoder has been closed. Send the image again.")
            if self._process.poll() is not None:
                self._end()
                try:
                    self._start()
                except (VouchError, OSError) as error:  # e.g. not enough memory
                    raise EncoderStopped(
                        "The encoder has stopped and does not start again; the log says why. Send "
                        "the image again later."
                    ) from error
            try:
                self._images.write(images)
                self._connection.send((images.shape, images.dtype.str, at_once))
                answer = self._receive(ENCODE_TIMEOUT_S)
            except (EOFError, OSError) as error:
                self._end()
                raise EncoderStopped(
                    "The encoder stopped while it worked on this image, and is being started "
                    "again. Send the image again."
                ) from error
        if isinstance(answer, Embeddings):
            return answer
        raise EncodingFailed(f"The encoder cannot embed this image: {answer}")

    def close(self) -> None:
        """Kill the child, even during work."""
        self._closed = True
        self._process.kill()  # ends a running `encode`, which holds the lock
        with self._lock:
            self._end()
        atexit.unregister(self.close)

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._images = SharedPixels()
        numbers = [theirs.fileno(), self._images.fileno()]
        with theirs:
            # multiprocessing would import the main module again, which is the whole service: the
            # encoder would need 3.8 s of computing for a restart instead of 0.2 s.
            self._process = subprocess.Popen(  # noqa: S603 # no argument comes from a request
                [sys.executable, "-P", "-m", "service.encoding.process", *map(str, numbers)],
                env={
                    **os.environ,
                    **large_pages(os.environ),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
            )
        try:
            path = self._file if isinstance(self._file, Path) else self._file()
            self._connection.send((path, *self._options))
            answer = self._receive(START_TIMEOUT_S)
        except (EOFError, OSError) as error:
            self._end()
            raise EncoderError(
                "The process of the encoder ended before it was ready. The log says why; little "
                "memory is the usual reason."
            ) from error
        if isinstance(answer, VouchError):
            self._end()
            raise answer
        self.facts = answer
        fields: dict[str, Any] = {"pid": self.pid, "provider": self.provider}
        if self.placement is not None:
            shares = {name: asdict(share) for name, share in self.placement.items()}
            fields["placement"] = shares
        logger.info("encoder started", extra={"fields": fields})

    def _receive(self, patience_s: float) -> Any:  # noqa: ANN401 - the child's answer
        if not self._connection.poll(patience_s):
            raise TimeoutError(f"no answer within {patience_s} s")
        return self._connection.recv()

    def _end(self) -> None:
        self._connection.close()
        self._images.close()
        self._process.kill()
        self._process.wait()


LARGEST_FILE = 256 * 1024**2
"""Maximum size in bytes of an encoder that runs batches in parallel. Parallel batches need a second
copy of the weights. A larger encoder has large layers, so all threads work well on one batch."""


class SideBySide:
    """Encodes a single batch on all threads, and several batches in parallel on one thread each.

    Parameters
    ----------
    whole : encoder with all threads, for a single batch.
    open_narrow : opens the same encoder with one thread, at the first call with several batches.
    n : number of parallel batches.
    """

    def __init__(self, whole: Encoder, open_narrow: Callable[[], Encoder], n: int) -> None:
        self._whole = whole
        self._open_narrow: Callable[[], Encoder] | None = open_narrow
        self._narrow: Encoder | None = None
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="batch")

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images`` in batches of ``at_once`` images; see `Encoder.encode`."""
        if at_once is None or len(images) <= at_once:
            return self._whole.encode(images)
        narrow = self._opened()
        if narrow is None:
            return self._whole.encode(images, at_once)
        batches = [images[i : i + at_once] for i in range(0, len(images), at_once)]
        return Embeddings.concatenate(list(self._threads.map(narrow.encode, batches)))

    def _opened(self) -> Encoder | None:
        """Return the encoder with one thread; None if the file cannot be opened or has changed."""
        if self._open_narrow is not None:
            try:
                narrow = self._open_narrow()
                if narrow.fingerprint == self._whole.fingerprint:
                    self._narrow = narrow
            except (VouchError, OSError) as error:  # e.g. a missing file
                logger.warning("no batches side by side", exc_info=error)
            self._open_narrow = None
        return self._narrow


def side_by_side(
    path: Path, provider: ProviderChoice, threads: int, *, cuda_graphs: bool
) -> tuple[OnnxEncoder, Callable[[Inputs, int | None], Embeddings]]:
    """Open the encoder at ``path``; return it, and a function that encodes batches with it.

    Parameters
    ----------
    provider, threads, cuda_graphs : arguments of `OnnxEncoder`.

    Raises
    ------
    EncoderError : as `OnnxEncoder`.
    """
    encoder = OnnxEncoder(path, provider, threads, cuda_graphs=cuda_graphs)
    n = threads or usable_processors()
    if n == 1 or encoder.provider != PROVIDERS["cpu"] or path.stat().st_size > LARGEST_FILE:
        return encoder, encoder.encode
    return encoder, SideBySide(encoder, lambda: OnnxEncoder(path, "cpu", 1), n).encode


def main() -> None:
    """Run the child; the arguments are the file descriptors of its pipe and of its images."""
    # A signal that stops the service may go to its whole group; the service then drains, and needs
    # us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log_as_json()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the service has ended
        _serve(Connection(int(sys.argv[1])), SharedPixels(int(sys.argv[2])))


def _serve(connection: Connection[Any, Any], images: SharedPixels) -> None:
    """Encode batches until the pipe closes."""
    path, provider, threads, cuda_graphs = connection.recv()
    try:
        encoder, encode = side_by_side(path, provider, threads, cuda_graphs=cuda_graphs)
    except VouchError as error:
        connection.send(error)
        return
    connection.send(EncoderFacts.of(encoder))
    while True:
        shape, dtype, at_once = connection.recv()
        try:
            answer: Embeddings | str = encode(images.read(shape, dtype), at_once)
        except Exception as error:
            answer = str(error)
        connection.send(answer)


if __name__ == "__main__":
    main()
