"""The directory that an indexing works in, which is all that a later run needs to go on."""

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
    """A directory, and what lies in it.

    ::

    <work>/
      lock              held by the process that works here
      index.json        what the run is of, and how it ended
      quarantine.jsonl  images that are not in the gallery, and why
      duplicates.jsonl  ids of images with the same content
      losses.jsonl      images that lost something when they were decoded, and what
      held_out.jsonl    ids of images that are queries to calibrate with, and not in the gallery
      calibration.md    all numbers of the calibration, for people
      catalogue.sqlite  the source's entries, read anew by every run
      source/           what of the source is copied or unpacked, to be read at any place
      fetched/          remote images that are about to be decoded
      vectors.sqlite    what was computed of images that calibration asks for too
      shards/           what is embedded; see `index_builder.indexing.shards`
      bundle/           the bundle in the making
    """

    directory: Path

    @property
    def summary(self) -> Path:
        """The file with the run's input and result."""
        return self.directory / "index.json"

    @property
    def quarantine(self) -> Path:
        """Images that are not in the gallery, and why, one JSON object a line."""
        return self.directory / "quarantine.jsonl"

    @property
    def duplicates(self) -> Path:
        """Ids of images with the same content, one JSON object a line."""
        return self.directory / "duplicates.jsonl"

    @property
    def losses(self) -> Path:
        """Images that lost something when they were decoded, one JSON object a line."""
        return self.directory / "losses.jsonl"

    @property
    def held_out(self) -> Path:
        """Ids of the images that were kept out of the gallery, one JSON object a line."""
        return self.directory / "held_out.jsonl"

    @property
    def calibration_table(self) -> Path:
        """All numbers of the calibration, for people."""
        return self.directory / CALIBRATION_TABLE

    @property
    def catalogue(self) -> Path:
        """The source's entries."""
        return self.directory / "catalogue.sqlite"

    @property
    def source(self) -> Path:
        """The directory of copied or unpacked files of the source."""
        return self.directory / "source"

    @property
    def fetched(self) -> Path:
        """The directory of images that lie elsewhere, until they are decoded."""
        return self.directory / "fetched"

    @property
    def vectors(self) -> Path:
        """The vectors of images that calibration asks for too; see `VectorFile`."""
        return self.directory / "vectors.sqlite"

    @property
    def bundle(self) -> Path:
        """The bundle in the making."""
        return self.directory / "bundle"

    @property
    def store(self) -> ShardStore:
        """The shards that are embedded."""
        return ShardStore(self.directory / "shards")

    def begin(self, *, resume: bool) -> None:
        """Make the directories; what earlier runs embedded stays where it is to be resumed."""
        if not resume:
            self.clear()
        for directory in (self.store.directory, self.source):
            directory.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove everything but the reports."""
        for directory in (self.store.directory, self.bundle, self.source, self.fetched):
            shutil.rmtree(directory, ignore_errors=True)
        for path in (self.catalogue, self.vectors):
            path.unlink(missing_ok=True)


@contextmanager
def occupied(directory: Path) -> Iterator[Work]:
    """Work in ``directory``, alone.

    Raises
    ------
    RunInUse : another process does.
    OutputError : it cannot be made, or written to.
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
