"""Engines decode and encode blocks in parallel, and write a shard for each.

Image files are decoded in processes, because an image can crash its decoder. Images in memory are
prepared in threads.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from index_builder.child_processes import SpawnedContext, children_unreached, end_with_parent
from index_builder.indexing.catalogue import Catalogue
from index_builder.output import writing
from index_builder.progress import progress_bar
from index_builder.vectors.encoder import StoredEncoder, recipe, stored
from index_builder.vectors.encoder_file import encoder_on_cpu
from model_store.encoder.contract import Embeddings, Encoder, VectorInput, usable_vectors
from model_store.encoder.onnx import OnnxEncoder, choose_provider
from model_store.errors import SourceUnavailable, TooManyBadImages
from model_store.gallery import Thumbnail
from model_store.images import ImageLimits, Preprocessing
from model_store.images.decode import DecodingBudget
from model_store.machine import OF_INDEXING, PROVIDERS, ProviderChoice, tune_malloc

from .blocks import Block, Failure, PreparedBlock, Tolerance
from .fetching import BLOCKS_AT_ONCE, Fetching
from .prepare import Prepare, budget_for, failed_block, prepare_files, prepare_vectors
from .workdir import Shard, ShardStore

Encode = Callable[[PreparedBlock], Embeddings]
"""A function that returns the means and variances of a block's images, in the order of the ids."""


_NO_NUMBER = Failure(
    "EncodingFailed", "The encoder's embedding of the image is not finite, or zero."
)


def open_encoder(path: Path, provider: ProviderChoice = "auto") -> OnnxEncoder:
    """Open the encoder in ``path`` for several threads that encode whole batches.

    Each batch runs on one thread. So no thread waits for another thread, and sums do not depend on
    the number of processors. On a CPU, all steps of a build share the encoder.
    """
    if choose_provider(provider, path.read_bytes()) == "cpu":
        return encoder_on_cpu(path)
    return OnnxEncoder(path, provider, threads=1)


def embed(
    prepared: PreparedBlock, encoder: Encoder, digest: str, encode: Encode | None = None
) -> Shard:
    """Encode a block; leave out unreadable images, and images whose embedding is invalid.

    Parameters
    ----------
    digest : see `Block.digest`.
    encode : function that is called instead of the encoder, for example a cache. Its results must
        be bit-identical to the results of the encoder.
    """
    if encode is None:
        embeddings = stored(encoder).encode_known(prepared.images, None)
    else:
        embeddings = encode(prepared)
    mean, variance = embeddings.mean, embeddings.variance
    sound = usable_vectors(mean, variance)
    failures = dict(prepared.failures)
    for row, name in enumerate(prepared.ids):
        if not sound[row]:
            failures.setdefault(name, _NO_NUMBER)
    rows = [row for row, name in enumerate(prepared.ids) if name not in failures]
    thumbnails = [prepared.thumbnails[row] for row in rows]
    return Shard(
        prepared.number,
        digest,
        tuple(prepared.ids[row] for row in rows),
        mean[rows],
        variance[rows],
        tuple(Thumbnail(*one) for one in thumbnails if one is not None),
        tuple(prepared.hashes[row] for row in rows),
        failures,
        tuple(prepared.previews[row] for row in rows),
        losses={name: said for name, said in prepared.losses.items() if name not in failures},
    )


@dataclass(slots=True)
class Progress:
    """The progress of a run.

    Attributes
    ----------
    n_kept : number of images in shards of an earlier run.
    n_embedded : number of embedded images, including images in shards of an earlier run.
    failures : errors by id, including errors of an earlier run.
    losses : warnings by id, for images that lost data in decoding, including warnings of an earlier
        run.
    """

    n_images: int
    n_kept: int = 0
    n_embedded: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    losses: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def n_done(self) -> int:
        """Number of images that are embedded or have failed."""
        return self.n_embedded + len(self.failures)

    def count(self, shard: Shard) -> None:
        """Count the images and failures of ``shard``."""
        self.n_embedded += len(shard.ids)
        self.failures.update(shard.failures)
        self.losses.update(shard.losses)

    @property
    def sentence(self) -> str:
        """A sentence for the error message of an interrupted run: how many images are embedded."""
        return f"{self.n_done:,} of {self.n_images:,} images are embedded and kept."


def embed_catalogue(
    catalogue: Catalogue,
    store: ShardStore,
    encoder: Encoder,
    engine: Engine,
    tolerance: Tolerance,
    progress: Progress,
    preview_side: int | None = None,
) -> None:
    """Write a shard for each block into ``store``; valid existing shards are kept.

    Parameters
    ----------
    preview_side : see `IndexSettings`. Shards with a different preview size are rebuilt.

    Raises
    ------
    TooManyBadImages : the number of failures exceeds the limit.
    SourceUnavailable : the images can no longer be reached.
    OutputError : the disk is full.
    """
    of_encoder = recipe(encoder)
    if preview_side is not None:
        of_encoder += f" previews {preview_side}"
    with progress_bar() as bar:
        task = bar.add_task("embedding", total=progress.n_images)

        def missing() -> Iterator[Task]:
            for block in catalogue.blocks():
                digest = block.digest(of_encoder)
                shard = store.find(block, digest)
                if shard is None:
                    yield block, digest
                    continue
                progress.n_kept += len(block.ids)
                progress.count(shard)
                bar.update(task, completed=progress.n_done)
                check()

        def check() -> None:
            if not tolerance.allows(len(progress.failures), progress.n_images):
                found = too_many(progress.failures, progress.n_images, tolerance)
                raise TooManyBadImages(f"{found} Finished embeddings are kept.")

        try:
            for shard in engine.shards(missing()):
                with writing(f"the shards in {store.directory}", progress.sentence):
                    store.write(shard)
                progress.count(shard)
                bar.update(task, completed=progress.n_done)
                check()
        except SourceUnavailable as error:
            raise SourceUnavailable(
                f"{error} {progress.sentence} The same command resumes from there."
            ) from error


def too_many(failures: Mapping[str, Failure], n_images: int, tolerance: Tolerance) -> str:
    """Return an error about too many failures; ``failures`` has at least one error by id."""
    name, why = next(iter(failures.items()))
    return (
        f"{len(failures):,} of {n_images:,} images cannot be indexed, and "
        f"at most {tolerance} may fail; for example {name!r}: {why.reason} Repair or remove such "
        f"images, or raise {'--max-pixels, --max-bytes or ' * (why.error == 'ImageTooLarge')}"
        "--max-bad."
    )


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
    return ProcessPoolExecutor(n, SpawnedContext(), _begin)


def _begin() -> None:
    """Initialise a decoder process, which ends when its parent ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tune_malloc(OF_INDEXING)
    # Hide the messages of C libraries about damaged files, because the report lists the reasons.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    end_with_parent()


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
    encode : the function that encodes a block, see `embed`.
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
