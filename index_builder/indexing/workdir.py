"""The run directory of an index command; a later run resumes from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from index_builder.indexing.shards import ShardStore
from index_builder.output import CALIBRATION_TABLE, writing
from model_store.errors import RunInUse
from model_store.files import lock_between_processes

LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True)
class Work:
    """A run directory and its files.

    ::

    <work>/
      lock              held by the process that works here
      index.json        input, state and result of the run
      quarantine.jsonl  images that are not in the gallery, with reasons
      duplicates.jsonl  ids of images with the same content
      losses.jsonl      images that lost data in decoding
      held_out.jsonl    ids of images held out of the gallery as calibration queries
      calibration.md    all results of the calibration, as a table
      catalogue.sqlite  entries of the source, written anew by every run
      source/           copied or unpacked files of the source
      fetched/          remote images that are about to be decoded
      vectors.sqlite    cache of embeddings that the calibration uses again
      shards/           embeddings; see `index_builder.indexing.shards`
      bundle/           the unfinished bundle
    """

    directory: Path

    @property
    def summary(self) -> Path:
        """File with input, state and result of the run, as JSON."""
        return self.directory / "index.json"

    @property
    def quarantine(self) -> Path:
        """File of images that are not in the gallery, with reasons; one JSON object per line."""
        return self.directory / "quarantine.jsonl"

    @property
    def duplicates(self) -> Path:
        """File with the ids of images with equal content; one JSON object per line."""
        return self.directory / "duplicates.jsonl"

    @property
    def losses(self) -> Path:
        """File of images that lost data in decoding; one JSON object per line."""
        return self.directory / "losses.jsonl"

    @property
    def held_out(self) -> Path:
        """File with the ids of held-out images; one JSON object per line."""
        return self.directory / "held_out.jsonl"

    @property
    def calibration_table(self) -> Path:
        """File with all results of the calibration, as a Markdown table."""
        return self.directory / CALIBRATION_TABLE

    @property
    def catalogue(self) -> Path:
        """File with the catalogue: all entries of the source."""
        return self.directory / "catalogue.sqlite"

    @property
    def source(self) -> Path:
        """Directory for copied or unpacked files of the source."""
        return self.directory / "source"

    @property
    def fetched(self) -> Path:
        """Directory for downloaded images, until they are decoded."""
        return self.directory / "fetched"

    @property
    def vectors(self) -> Path:
        """File with cached embeddings, see `VectorFile`; the calibration reads them again."""
        return self.directory / "vectors.sqlite"

    @property
    def bundle(self) -> Path:
        """Directory of the unfinished bundle."""
        return self.directory / "bundle"

    @property
    def store(self) -> ShardStore:
        """The store of the finished shards."""
        return ShardStore(self.directory / "shards")

    def begin(self, *, resume: bool) -> None:
        """Create the directories. If ``resume`` is true, the shards of earlier runs are kept."""
        if not resume:
            self.clear()
        for directory in (self.store.directory, self.source):
            directory.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove all files except the reports."""
        for directory in (self.store.directory, self.bundle, self.source, self.fetched):
            shutil.rmtree(directory, ignore_errors=True)
        for path in (self.catalogue, self.vectors):
            path.unlink(missing_ok=True)


@contextmanager
def occupied(directory: Path) -> Iterator[Work]:
    """Lock the run directory ``directory`` in a context, and return its `Work`.

    Raises
    ------
    RunInUse : another process uses the directory.
    OutputError : the directory cannot be created or written.
    """
    with writing(f"the run directory {directory}"):
        try:
            held = lock_between_processes(directory / LOCK_FILE).acquire(blocking=False)
        except Timeout as error:
            raise RunInUse(
                f"Another process works in {directory}. Wait for it to end, or name another --run."
            ) from error
    with held:
        yield Work(directory)
