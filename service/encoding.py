"""The encoder in a process of its own: when it dies, the service does not.

ONNX Runtime and a GPU's driver can end the process they run in. Here that process does nothing
else: what it was at work on fails with an error that says so, and it is started again.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.encoder import Embeddings, EncoderMetadata, OnnxEncoder, ProviderChoice
from model_store.errors import EncoderError, EncoderStopped, EncodingFailed, VouchError

logger = logging.getLogger(__name__)

START_PATIENCE_S = 120.0
"""For loading the encoder: CUDA's libraries come from a cold disk once."""

ENCODE_PATIENCE_S = 30.0
"""For one batch: what takes longer hangs, and is ended."""

_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads


class EncoderProcess:
    """An `Encoder` that runs `OnnxEncoder` in a child process; safe to share by threads.

    The child ends with this process, however that ends: it reads from a pipe that closes then.

    Parameters
    ----------
    path, provider, threads : as for `OnnxEncoder`.

    Raises
    ------
    EncoderError : as `OnnxEncoder`, or the child cannot be started.
    """

    def __init__(self, path: Path, provider: ProviderChoice = "auto", threads: int = 0) -> None:
        self._arguments = (path, provider, threads)
        self._lock = threading.Lock()
        self._closed = False
        self.fingerprint: str
        self.metadata: EncoderMetadata
        self.provider: str
        self.dim: int
        self.n_features: int
        self._start()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Of the child."""
        pid = self._process.pid
        assert pid is not None  # noqa: S101 - it was started
        return pid

    def encode(self, images: NDArray[np.uint8]) -> Embeddings:
        """Embed ``images`` (B, H, W, 3); starts the child again where it has died before.

        Raises
        ------
        EncoderStopped : the child died, or hung, over these images.
        EncodingFailed : it refused them and lives on.
        """
        with self._lock:
            if self._closed:
                raise EncoderStopped("The encoder has been closed. Send the image again.")
            if not self._process.is_alive():
                self._start()
            try:
                self._connection.send(images)
                answer = self._receive(ENCODE_PATIENCE_S)
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
        """End the child."""
        with self._lock:
            self._closed = True
            self._end()
        atexit.unregister(self.close)

    def _start(self) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve, args=(theirs, *self._arguments), name="encoder", daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            answer = self._receive(START_PATIENCE_S)
        except (EOFError, OSError) as error:
            self._end()
            raise EncoderError(
                "The process of the encoder ended before it was ready. The log says why; little "
                "memory is the usual reason."
            ) from error
        if isinstance(answer, VouchError):
            self._end()
            raise answer
        self.fingerprint, self.metadata, self.provider, self.dim, self.n_features = answer
        logger.info("encoder started", extra={"fields": {"pid": self.pid}})

    def _receive(self, patience_s: float) -> Any:  # noqa: ANN401 - the child's answer
        if not self._connection.poll(patience_s):
            raise TimeoutError(f"no answer within {patience_s} s")
        return self._connection.recv()

    def _end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()


def _serve(
    connection: Connection[Any, Any], path: Path, provider: ProviderChoice, threads: int
) -> None:
    """Answer batches until the pipe closes: the child's whole life."""
    # Whoever stops the service may signal its whole group; the service then drains, and needs us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        encoder = OnnxEncoder(path, provider, threads)
    except VouchError as error:
        connection.send(error)
        return
    connection.send(
        (encoder.fingerprint, encoder.metadata, encoder.provider, encoder.dim, encoder.n_features)
    )
    while True:
        try:
            images = connection.recv()
        except EOFError:
            return
        try:
            answer: Embeddings | str = encoder.encode(images)
        except Exception as error:
            answer = str(error)
        connection.send(answer)
