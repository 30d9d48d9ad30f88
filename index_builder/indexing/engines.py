"""Engines decode and encode in parallel, with a limited number of blocks in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from index_builder.indexing.blocks import Block, PreparedBlock
from index_builder.indexing.decoders import Decoders, decoders_for
from index_builder.indexing.embed import Encode, embed
from index_builder.indexing.fetching import BLOCKS_AT_ONCE, Fetching
from index_builder.indexing.shards import Shard
from index_builder.vectors.encoder import StoredEncoder
from model_store.encoder.contract import Embeddings, Encoder
from model_store.errors import SourceUnavailable
from model_store.images import ImageLimits
from model_store.processors import PROVIDERS

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
