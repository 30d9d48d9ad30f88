"""Encodes a block in batches of equal size, and makes its shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.output import writing
from index_builder.progress import progress_bar
from index_builder.vectors.encoder import batch_size, recipe
from index_builder.vectors.opened import encoder_on_cpu
from model_store.encoder.contract import Embeddings, Encoder, Inputs
from model_store.encoder.onnx import OnnxEncoder, choose_provider
from model_store.errors import SourceUnavailable, TooManyBadImages
from model_store.gallery import Thumbnail
from model_store.processors import ProviderChoice

from .blocks import Failure, PreparedBlock, Tolerance
from .catalogue import Catalogue
from .engines import Engine, Task
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
        mean, variance = _encoded(prepared.images, encoder)
    else:
        embeddings = encode(prepared)
        mean, variance = embeddings.mean, embeddings.variance
    sound = np.isfinite(mean).all(1) & np.isfinite(variance).all(1) & (mean != 0).any(1)
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


def _encoded(images: Inputs, encoder: Encoder) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Encode ``images`` (n, H, W, 3) in batches; the last batch is padded with zeros."""
    size = batch_size(encoder)
    means, variances = [], []
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        n_images = len(batch)
        if n_images < size:
            blank = np.zeros((size - n_images, *images.shape[1:]), dtype=images.dtype)
            batch = np.concatenate([batch, blank])
        embeddings = encoder.encode(batch)
        means.append(embeddings.mean[:n_images])
        variances.append(embeddings.variance[:n_images])
    return np.concatenate(means), np.concatenate(variances)


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
