"""An engine that decodes and encodes on a Ray cluster, or with Ray on this machine."""

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

from index_builder.indexing.engines import DecoderProcesses, LocalEngine, Task, open_encoder
from index_builder.indexing.fetching import Fetching
from index_builder.indexing.workdir import Shard
from index_builder.storage import Patience, Storage, Trust
from model_store.errors import SourceUnavailable
from model_store.images import ImageLimits
from model_store.machine import ProviderChoice

# Disable Ray's usage reports before `import ray`.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray

BLOCKS_TOGETHER = 4
"""Number of blocks in a worker's task. The worker decodes one block while it encodes another block.
After a crash, another worker repeats the task."""

Rows = dict[str, NDArray[np.object_]]


class RayEngine:
    """Runs a `LocalEngine` with one decoder and one encoder in each worker of Ray Data.

    Ray restarts crashed workers and repeats their unfinished blocks; finished shards are kept. The
    variable ``RAY_ADDRESS`` has the address of the cluster. If the variable is not set, Ray starts
    on this machine. Workers read the files, so all machines need the collection under the same
    path.

    Parameters
    ----------
    path : file of the encoder; its content is sent to the workers.
    n : number of workers.
    limits : maximum size of an image.
    storage : the timeouts and the trusted hosts for the workers. Each worker takes credentials from
        its own environment.
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
        """Yield the shard of each task, in the order of completion."""
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        if not rows:
            return
        if not ray.is_initialized():
            _join(self._n)
        ray.data.DataContext.get_current().enable_progress_bars = False
        encoder = ray.put(self._encoder)  # keep a reference, for restarted workers
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
        """Disconnect from the cluster, or stop Ray on this machine."""
        ray.shutdown()


def _join(n: int) -> None:
    """Connect to the cluster in ``RAY_ADDRESS``; if it is not set, start ``n`` workers here."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**quiet)
    else:
        ray.init(num_cpus=n, include_dashboard=False, **quiet)


class _Worker:
    """A worker process of Ray, with one decoder and one encoder."""

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
        except SourceUnavailable as error:  # Ray would wrap an exception in its own type
            made["shard"].append(b"")
            made["lost"].append(str(error))
        return made
