"""Embeds all images of a catalogue that have no shard yet, and counts failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from index_builder.indexing.blocks import Failure
from index_builder.indexing.catalogue import Catalogue
from index_builder.indexing.engines import Engine, Task
from index_builder.indexing.shards import Shard, ShardStore
from index_builder.indexing.tolerance import Tolerance
from index_builder.output import writing
from index_builder.progress import progress_bar
from index_builder.vectors.encoder import recipe
from model_store.encoder.contract import Encoder
from model_store.errors import SourceUnavailable, TooManyBadImages


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
                raise TooManyBadImages(_too_many(progress, tolerance))

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


def _too_many(progress: Progress, tolerance: Tolerance) -> str:
    name, why = next(iter(progress.failures.items()))
    return (
        f"{len(progress.failures):,} of {progress.n_images:,} images cannot be indexed, and "
        f"at most {tolerance} may fail; for example {name!r}: {why.reason} Repair or remove such "
        f"images, or raise {'--max-pixels, --max-bytes or ' * (why.error == 'ImageTooLarge')}"
        "--max-bad. Finished embeddings are kept."
    )
