"""The work of an indexing on a Ray cluster, or by several processes of a Ray on this machine."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.indexing.decoders import DecoderProcesses
from index_builder.indexing.embed import open_encoder
from index_builder.indexing.engines import LocalEngine, Task
from index_builder.indexing.fetching import Fetching
from index_builder.indexing.shards import Shard
from index_builder.storage import Patience, Storage, Trust
from model_store.errors import SourceUnavailable
from model_store.images import ImageLimits
from model_store.processors import ProviderChoice

# Ray reports its use to its maker unless this is disabled before the import.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray

BLOCKS_TOGETHER = 4
"""Blocks that a worker is given at once: it decodes one while it encodes another. If a worker dies,
another one repeats so many blocks."""

Rows = dict[str, NDArray[np.object_]]


class RayEngine:
    """Ray Data: workers that each decode and encode, as `LocalEngine` does with one of each.

    Ray starts workers that die again and repeats what they had not delivered; the shards that it
    has delivered are kept like any others. The cluster is that of ``RAY_ADDRESS``, or one that is
    started on this machine. Files are read where the workers are: on several machines the
    collection lies where all of them see it, under the same path.

    Parameters
    ----------
    path : the encoder's file; its bytes are sent along.
    n : of workers.
    limits : which images are decoded.
    storage : whose patience and trust the workers have with servers that images lie on; their
        credentials are those in the environment of the workers.
    preview_side : see `IndexSettings`.
    """

    def __init__(
        self,
        path: Path,
        provider: ProviderChoice,
        n: int,
        limits: ImageLimits | None = None,
        storage: Storage | None = None,
        preview_side: int | None = None,
    ) -> None:
        self._preview_side = preview_side
        self._limits = limits or ImageLimits()
        storage = storage or Storage()
        self._fetched_by = storage.patience, storage.trust
        self._encoder = path.read_bytes()
        self._provider: ProviderChoice = provider
        self._n = n

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        """The shard of each task, in whatever order they are done."""
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        if not rows:
            return
        if not ray.is_initialized():
            _join(self._n)
        ray.data.DataContext.get_current().enable_progress_bars = False
        encoder = ray.put(self._encoder)  # held here: a worker that is started again asks for it
        n_parts = -(-len(rows) // BLOCKS_TOGETHER)
        embedded = ray.data.from_items(rows, override_num_blocks=n_parts).map_batches(
            _Worker,
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=min(self._n, n_parts)),
            fn_constructor_args=(
                encoder,
                self._provider,
                self._limits,
                self._fetched_by,
                self._preview_side,
            ),
            num_cpus=1,
            num_gpus=1 if self._provider in {"cuda", "tensorrt"} else 0,
        )
        lost = None
        for row in embedded.iter_rows():
            if row["lost"]:
                lost = row["lost"]
            else:
                yield Shard.from_bytes(row["shard"])
        if lost is not None:
            raise SourceUnavailable(lost)

    def close(self) -> None:
        """Leave the cluster, or end the one that was started."""
        ray.shutdown()


def _join(n: int) -> None:
    """Join the cluster of ``RAY_ADDRESS``; without one, start one of ``n`` workers here."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**quiet)
    else:
        ray.init(num_cpus=n, include_dashboard=False, **quiet)


class _Worker:
    """Decoder and encoder in a process of Ray's."""

    def __init__(
        self,
        encoder: ray.ObjectRef[bytes],
        provider: ProviderChoice,
        limits: ImageLimits,
        fetched_by: tuple[Patience, Trust],
        preview_side: int | None,
    ) -> None:
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / "encoder.onnx"
            path.write_bytes(ray.get(encoder))
            opened = open_encoder(path, provider)
        decoders = DecoderProcesses(
            opened.metadata.preprocessing, 1, limits, preview_side=preview_side
        )
        self._scratch = TemporaryDirectory()
        fetching = Fetching(Storage(*fetched_by), Path(self._scratch.name), limits)
        self._engine = LocalEngine(decoders, opened, 1, fetching=fetching)

    def __call__(self, rows: Rows) -> dict[str, list[Any]]:
        tasks: list[Task] = [pickle.loads(task) for task in rows["task"]]  # noqa: S301 - our own
        made: dict[str, list[Any]] = {"shard": [], "lost": []}
        try:
            for shard in self._engine.shards(tasks):
                made["shard"].append(shard.to_bytes())
                made["lost"].append("")
        except SourceUnavailable as error:  # Ray would wrap it in its own error
            made["shard"].append(b"")
            made["lost"].append(str(error))
        return made
