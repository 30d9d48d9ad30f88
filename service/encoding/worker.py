"""The encoder's process: it receives batches and returns embeddings; see `process`.

A single batch is fastest if all threads share it. But these threads wait for each other in every
layer. Therefore several batches finish sooner if each batch has its own thread.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from model_store.encoder.contract import Embeddings, Encoder, EncoderFacts, Inputs
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import VouchError
from model_store.machine import PROVIDERS, ProviderChoice, usable_processors
from service.observability.logs import log_as_json
from service.processes.shared_pixels import SharedPixels

logger = logging.getLogger(__name__)

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
