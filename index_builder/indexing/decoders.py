"""Decoders: processes that image files can take down, and threads for what is in memory already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from index_builder.indexing.blocks import Block, Failure, PreparedBlock
from index_builder.indexing.prepare import (
    Prepare,
    budget_for,
    failed_block,
    prepare_files,
    prepare_vectors,
)
from index_builder.interrupts import children_unreached
from model_store.encoder.contract import Encoder
from model_store.encoder.vector_input import VectorInput
from model_store.images import ImageLimits, Preprocessing
from model_store.images.budget import DecodingBudget
from model_store.memory import OF_INDEXING, tune_malloc

N_TRIES = 2
"""An image is to blame for its decoder's end when it was alone with it so many times; once may be
the kernel, reclaiming memory, or a user with `kill`."""

_TOOK_IT_ALONG = Failure(
    "ImageTooCostly",
    "The image took the process down that decoded it: it needs too much computing, or is made to "
    "crash decoders.",
)


class Decoders(Protocol):
    """Prepares several blocks at a time."""

    def submit(self, block: Block) -> Future[PreparedBlock]:
        """Begin with ``block``."""

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:
        """Return the decoded images of ``block``, whose future is done."""

    def close(self) -> None:
        """Forget what has not begun, and end."""


class DecoderThreads:
    """For images that lie in memory, or whose reader cannot be sent to another process."""

    def __init__(self, prepare: Prepare, n: int) -> None:
        self._prepare = prepare
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="decode")

    def submit(self, block: Block) -> Future[PreparedBlock]:
        """Begin with ``block``."""
        return self._threads.submit(self._prepare, block)

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:  # noqa: ARG002 - of the protocol
        """Return the decoded images of ``block``, whose future is done."""
        return future.result()

    def close(self) -> None:
        """Forget what has not begun, and end."""
        self._threads.shutdown(cancel_futures=True)


class DecoderProcesses:
    """Processes that decode files. One that dies loses nothing but the image that killed it.

    Where a process has died, others take the place of all, and the blocks that were at work are
    prepared image by image.

    Parameters
    ----------
    limits : which images are decoded.
    budget : what one of them may cost; by default as much as ``limits`` ask for.
    preview_side : see `IndexSettings`.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        n: int,
        limits: ImageLimits | None = None,
        budget: DecodingBudget | None = None,
        preview_side: int | None = None,
    ) -> None:
        limits = limits or ImageLimits()
        self._preprocessing = preprocessing
        self._prepare = partial(
            prepare_files,
            preprocessing=preprocessing,
            budget=budget or budget_for(limits),
            limits=limits,
            preview_side=preview_side,
        )
        self._n = n
        self._pool = _started(n)
        self._careful: ProcessPoolExecutor | None = None

    def submit(self, block: Block) -> Future[PreparedBlock]:
        """Begin with ``block``."""
        with children_unreached():
            try:
                return self._pool.submit(self._prepare, block)
            except BrokenExecutor:
                self._pool.shutdown(wait=False)
                self._pool = _started(self._n)
                return self._pool.submit(self._prepare, block)

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:
        """Return the decoded images of ``block``, whose future is done.

        If a decoder crashed, the images are decoded again one by one.
        """
        try:
            return future.result()
        except BrokenExecutor:
            return PreparedBlock.joined([self._alone(single) for single in block.singles()])

    def close(self) -> None:
        """Forget what has not begun, and end."""
        for pool in (self._pool, self._careful):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def _alone(self, single: Block) -> PreparedBlock:
        for _ in range(N_TRIES):
            if self._careful is None:
                self._careful = _started(1)
            try:
                with children_unreached():
                    future = self._careful.submit(self._prepare, single)
                return future.result()
            except BrokenExecutor:
                self._careful.shutdown(wait=False)
                self._careful = None
        return failed_block(single, _TOOK_IT_ALONG, self._preprocessing)


def decoders_for(
    encoder: Encoder, n: int, limits: ImageLimits, preview_side: int | None = None
) -> Decoders:
    """Return ``n`` decoders of what an encoder takes: processes for files of images."""
    expected = encoder.metadata.input
    if isinstance(expected, VectorInput):
        return DecoderThreads(partial(prepare_vectors, expected=expected), n)
    return DecoderProcesses(expected, n, limits, preview_side=preview_side)


def _started(n: int) -> ProcessPoolExecutor:
    # Not forked: the threads of ONNX Runtime would not be there in the child, but their locks.
    return ProcessPoolExecutor(n, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Make of this process a decoder: it ends with its parent, and only then."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tune_malloc(OF_INDEXING)
    # What C libraries print about damaged files: the reasons stand in the report.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without it, decoders of a killed indexer would wait for ever for more to do."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
