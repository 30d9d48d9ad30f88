"""Engines, which decode and encode at once, and hold no more blocks in memory than are at work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from index_builder.indexing.blocks import Block, PreparedBlock
from index_builder.indexing.decoders import Decoders, decoders_for
from index_builder.indexing.embed import Encode, embed
from index_builder.indexing.shards import Shard
from index_builder.vectors.encoder import StoredEncoder
from model_store.encoder.contract import PROVIDERS, Embeddings, Encoder
from model_store.images import ImageLimits

Task = tuple[Block, str]
"""A block to embed, and its digest."""


class Engine(Protocol):
    """Makes shards of blocks. Laws: the same shards, bit for bit, whichever engine made them."""

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        """The shard of each task, in whatever order they are done."""

    def close(self) -> None:
        """End what was started for the work."""


class LocalEngine:
    """The machine itself: some decoders, and as many batches encoded at once.

    Parameters
    ----------
    n : of batches encoded at once, each on one thread; a GPU takes one at a time.
    encode : see `embed`.
    """

    def __init__(
        self, decoders: Decoders, encoder: Encoder, n: int, encode: Encode | None = None
    ) -> None:
        self._decoders = decoders
        self._encoder = encoder
        self._encode = encode
        self._n_encoders = n if encoder.provider == PROVIDERS["cpu"] else 1
        # Enough that whoever is done finds more to do; each is a few megabytes.
        self._n_at_work = 2 * n + self._n_encoders

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        """The shard of each task, in whatever order they are done."""
        waiting = iter(tasks)
        decoding: dict[Future[PreparedBlock], Task] = {}
        encoding: set[Future[Shard]] = set()
        encoders = ThreadPoolExecutor(self._n_encoders, thread_name_prefix="encode")
        try:
            while True:
                while len(decoding) + len(encoding) < self._n_at_work:
                    task = next(waiting, None)
                    if task is None:
                        break
                    decoding[self._decoders.submit(task[0])] = task
                if not decoding and not encoding:
                    return
                futures: list[Future[Any]] = [*decoding, *encoding]
                done, _ = wait(futures, return_when=FIRST_COMPLETED)
                for decoded in done & decoding.keys():
                    block, digest = decoding.pop(decoded)
                    prepared = self._decoders.result(decoded, block)
                    work = (prepared, self._encoder, digest, self._encode)
                    encoding.add(encoders.submit(embed, *work))
                for encoded in done & encoding:
                    encoding.remove(encoded)
                    yield encoded.result()
        finally:
            for future in decoding:
                future.cancel()
            encoders.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End the decoders."""
        self._decoders.close()


def local_engine(encoder: StoredEncoder, n: int, limits: ImageLimits) -> LocalEngine:
    """Return an engine for files, on this machine, whose encoder remembers what it has seen.

    Parameters
    ----------
    n : decoders, and batches encoded at once.
    limits : which images are decoded.
    """

    def encode(prepared: PreparedBlock) -> Embeddings:
        return encoder.encode_known(prepared.images, [*map(bytes.fromhex, prepared.hashes)])

    return LocalEngine(decoders_for(encoder, n, limits), encoder, n, encode)
