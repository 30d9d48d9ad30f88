"""Engines decode and encode in parallel, with a limited number of blocks in memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from functools import partial
from typing import Any, Protocol

from index_builder.interrupts import children_unreached
from index_builder.vectors.encoder import StoredEncoder
from model_store.encoder.contract import Embeddings, Encoder
from model_store.encoder.vector_input import VectorInput
from model_store.errors import SourceUnavailable
from model_store.images import ImageLimits, Preprocessing
from model_store.images.budget import DecodingBudget
from model_store.memory import OF_INDEXING, tune_malloc
from model_store.processors import PROVIDERS

from .blocks import Block, Failure, PreparedBlock
from .embed import Encode, embed
from .prepare import (
    BLOCKS_AT_ONCE,
    Fetching,
    Prepare,
    budget_for,
    failed_block,
    prepare_files,
    prepare_vectors,
)
from .workdir import Shard

N_TRIES = 2
"""Number of attempts to decode an image alone in a process. If every attempt crashes, the image
counts as the cause. A single crash can have another cause: the kernel is out of memory, or a user
runs `kill`."""

_TOOK_IT_ALONG = Failure(
    "ImageTooCostly",
    "The image crashed its decoder: it needs too much time or memory, or it is made to crash "
    "decoders.",
)


class Decoders(Protocol):
    """Prepares several blocks in parallel."""

    def submit(self, block: Block) -> Future[PreparedBlock]:
        """Start to prepare ``block``."""

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:
        """Return the decoded images of ``block``; the future must be done."""

    def close(self) -> None:
        """Cancel all blocks that no worker has begun, and end the workers."""


class DecoderThreads:
    """Decoders that run in threads.

    Threads are used for images in memory, and if ``prepare`` cannot be pickled.
    """

    def __init__(self, prepare: Prepare, n: int) -> None:
        self._prepare = prepare
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="decode")

    def submit(self, block: Block) -> Future[PreparedBlock]:
        """Start to prepare ``block``."""
        return self._threads.submit(self._prepare, block)

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:  # noqa: ARG002 - of the protocol
        """Return the decoded images of ``block``; the future must be done."""
        return future.result()

    def close(self) -> None:
        """Cancel all blocks that no worker has begun, and end the workers."""
        self._threads.shutdown(cancel_futures=True)


class DecoderProcesses:
    """Processes that decode files. A crash loses only the image that caused the crash.

    After a crash, all processes are replaced. Then the unfinished blocks are prepared image by
    image.

    Parameters
    ----------
    limits : maximum size of an image.
    budget : maximum time and memory per image; by default computed from ``limits``.
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
        """Start to prepare ``block``."""
        with children_unreached():
            try:
                return self._pool.submit(self._prepare, block)
            except BrokenExecutor:
                self._pool.shutdown(wait=False)
                self._pool = _started(self._n)
                return self._pool.submit(self._prepare, block)

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:
        """Return the decoded images of ``block``; the future must be done.

        If a decoder has crashed, the images are decoded again, one by one.
        """
        try:
            return future.result()
        except BrokenExecutor:
            return PreparedBlock.joined([self._alone(single) for single in block.singles()])

    def close(self) -> None:
        """Cancel all blocks that no worker has begun, and end the workers."""
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
    """Return ``n`` decoders for an encoder's input: processes for images, threads for vectors."""
    expected = encoder.metadata.input
    if isinstance(expected, VectorInput):
        return DecoderThreads(partial(prepare_vectors, expected=expected), n)
    return DecoderProcesses(expected, n, limits, preview_side=preview_side)


def _started(n: int) -> ProcessPoolExecutor:
    # Do not fork: a child process would inherit the locks of ONNX Runtime, but not its threads.
    return ProcessPoolExecutor(n, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Initialise a decoder process, which ends when its parent ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tune_malloc(OF_INDEXING)
    # Hide the messages of C libraries about damaged files, because the report lists the reasons.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent ends; otherwise the decoders of a killed run would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


Task = tuple[Block, str]
"""A block to embed, and its digest."""


class Engine(Protocol):
    """Turns blocks into shards. All engines make the same shards, bit for bit."""

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        """Yield the shard of each task, in the order of completion."""

    def close(self) -> None:
        """Stop all workers."""


class LocalEngine:
    """Decodes and encodes images on this machine.

    Parameters
    ----------
    n : number of batches that are encoded in parallel, each on one thread. A GPU encodes only one
        batch at a time.
    encode : see `embed`.
    fetching : downloads remote images; None if all images are local.
    """

    def __init__(
        self,
        decoders: Decoders,
        encoder: Encoder,
        n: int,
        encode: Encode | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        self._decoders = decoders
        self._encoder = encoder
        self._encode = encode
        self._n_encoders = n if encoder.provider == PROVIDERS["cpu"] else 1
        self._fetching = fetching
        # With this number of blocks, no worker waits for its next block. A block takes a few
        # megabytes.
        self._n_at_work = 2 * n + self._n_encoders + (BLOCKS_AT_ONCE if fetching else 0)

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        """Yield the shard of each task, in the order of completion.

        Raises
        ------
        SourceUnavailable : the source is unavailable; all downloaded images are encoded before the
            error is raised.
        """
        waiting = iter(tasks)
        fetched: dict[Future[Block], str] = {}
        decoding: dict[Future[PreparedBlock], Task] = {}
        encoding: set[Future[Shard]] = set()
        lost: SourceUnavailable | None = None
        encoders = ThreadPoolExecutor(self._n_encoders, thread_name_prefix="encode")
        try:
            while True:
                while len(fetched) + len(decoding) + len(encoding) < self._n_at_work:
                    task = next(waiting, None)
                    if task is None:
                        break
                    fetched[self._fetch(task[0])] = task[1]
                if not fetched and not decoding and not encoding:
                    break
                futures: list[Future[Any]] = [*fetched, *decoding, *encoding]
                done, _ = wait(futures, return_when=FIRST_COMPLETED)
                for one in done & fetched.keys():
                    digest = fetched.pop(one)
                    try:
                        block = one.result()
                    except SourceUnavailable as error:  # the other blocks are finished
                        lost, waiting = error, iter(())
                        continue
                    decoding[self._decoders.submit(block)] = block, digest
                for decoded in done & decoding.keys():
                    block, digest = decoding.pop(decoded)
                    work = (self._prepared(decoded, block), self._encoder, digest, self._encode)
                    encoding.add(encoders.submit(embed, *work))
                for encoded in done & encoding:
                    encoding.remove(encoded)
                    yield encoded.result()
            if lost is not None:
                raise lost
        finally:
            unfinished: list[Future[Any]] = [*fetched, *decoding]
            for future in unfinished:
                future.cancel()
            encoders.shutdown(cancel_futures=True)

    def _fetch(self, block: Block) -> Future[Block]:
        """Start to download the remote images of ``block``.

        The returned future gives the block with local files.
        """
        if self._fetching is not None:
            return self._fetching.submit(block)
        there: Future[Block] = Future()
        there.set_result(block)
        return there

    def _prepared(self, decoded: Future[PreparedBlock], block: Block) -> PreparedBlock:
        prepared = self._decoders.result(decoded, block)
        if self._fetching is not None:
            self._fetching.released(block)
        return prepared

    def close(self) -> None:
        """Stop the decoders and the downloads."""
        if self._fetching is not None:
            self._fetching.close()
        self._decoders.close()


def local_engine(
    encoder: StoredEncoder,
    n: int,
    limits: ImageLimits,
    fetching: Fetching | None = None,
    preview_side: int | None = None,
) -> LocalEngine:
    """Return an engine for this machine; it does not compute cached embeddings again.

    Parameters
    ----------
    n : number of decoders, and number of batches that are encoded in parallel.
    limits : maximum size of an image.
    fetching : downloads remote images; None if all images are local.
    preview_side : see `IndexSettings`.
    """

    def encode(prepared: PreparedBlock) -> Embeddings:
        return encoder.encode_known(prepared.images, [*map(bytes.fromhex, prepared.hashes)])

    decoders = decoders_for(encoder, n, limits, preview_side)
    return LocalEngine(decoders, encoder, n, encode, fetching)
