"""The work of an indexing on a Ray cluster, or on several processes of this machine's Ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from index_builder.indexing.engines import Task
from index_builder.indexing.shards import Shard
from model_store.encoder import ProviderChoice

N_TASKS = 512
"""Blocks that are planned together: 32,768 images. What a cluster that is lost takes with it is
what it had not delivered yet, since every shard is kept as it comes."""


class RayEngine:
    """Ray Data: decoding in tasks, encoding in actors that each hold the encoder.

    Workers that die are started again and their blocks repeated, by Ray. Files are read where the
    workers are, so that on several machines the collection lies where all of them see it.

    Parameters
    ----------
    path : the encoder's file; its bytes are sent along.
    n : of actors.
    """

    def __init__(self, path: Path, provider: ProviderChoice, n: int) -> None:
        self._encoder = path.read_bytes()
        self._provider: ProviderChoice = provider
        self._n = n

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        """The shard of each task, in whatever order they are done."""
        raise NotImplementedError
