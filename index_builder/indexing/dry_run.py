"""A dry run: checks a collection and estimates time and space, but builds no index."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import NONE, Block, Failure, PreparedBlock, Tolerance
from index_builder.indexing.catalogue import Catalogue, Contents
from index_builder.indexing.collection import Indexing
from index_builder.indexing.engines import decoders_for, embed, too_many
from index_builder.indexing.fetching import Fetching
from index_builder.indexing.prepare import NO_IMAGE, unreadable
from index_builder.vectors.encoder import batch_size
from model_store.encoder.contract import Encoder
from model_store.errors import TooManyBadImages

N_SAMPLE = 64
"""Number of images to decode, to measure the time and the share of unreadable images."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The estimates of a dry run.

    Attributes
    ----------
    contents : counts of the images in the source.
    left_out : files of the source that are left out.
    n_sample : number of decoded images, evenly spread over the source.
    unreadable : number of unreadable images in the sample, by error.
    seconds : estimated duration of the indexing.
    n_bytes : estimated bytes to write: shards, the gallery, and its published copy.
    n_free : free bytes on the disk of the run directory.
    failures : errors by id, of images that certainly cannot be indexed: missing images, images
        with an invalid field, and unreadable images of the sample.
    tolerance : maximum number or share of images that may fail.
    """

    contents: Contents
    left_out: LeftOut
    n_sample: int
    unreadable: Counter[str]
    seconds: float
    n_bytes: int
    n_free: int
    failures: Mapping[str, Failure] = field(default_factory=dict)
    tolerance: Tolerance = NONE

    @property
    def stops(self) -> bool:
        """Whether the run would certainly stop, because too many images fail."""
        return not self.tolerance.allows(len(self.failures), self.contents.n_images)

    def require_complete(self) -> None:
        """Check that the run would not certainly stop.

        Raises
        ------
        TooManyBadImages
        """
        if self.stops:
            n_images = self.contents.n_images
            raise TooManyBadImages(
                f"The run would stop: {too_many(self.failures, n_images, self.tolerance)}"
            )

    def rows(self) -> list[tuple[str, str]]:
        """Return the estimates as rows of a table."""
        found = self.contents
        bad = ", ".join(f"{n} {error}" for error, n in self.unreadable.most_common())
        return [
            ("images", f"{found.n_images:,} ({found.n_bytes / 2**20:,.1f} MiB)"),
            ("labelled", f"{found.n_labelled:,}, {found.n_labels:,} labels"),
            *self.left_out.rows(),
            ("missing", f"{found.n_missing:,}"),
            (f"unreadable, of {self.n_sample} tried", bad or "none"),
            ("time, about", _duration(self.seconds)),
            ("written, about", f"{self.n_bytes / 2**20:,.1f} MiB"),
            ("free on the disk", f"{self.n_free / 2**20:,.1f} MiB"),
        ]

    def report(self) -> dict[str, Any]:
        """Return the estimates as JSON; sizes are in bytes, and the duration is in seconds."""
        return {
            **asdict(self.contents),
            "n_left_out": dict(Counter(one.reason.value for one in self.left_out.files)),
            "n_sample": self.n_sample,
            "n_unreadable": dict(self.unreadable),
            "seconds": self.seconds,
            "n_bytes_to_write": self.n_bytes,
            "n_bytes_free": self.n_free,
            "would_stop": self.stops,
        }


def inspect_collection(indexing: Indexing) -> DryRun:
    """Read the whole source; decode and encode a sample, but leave no files.

    Raises
    ------
    DatasetError : the source is invalid.
    ConfigError, CalibrationError : see `Indexing.require_feasible`.
    """
    with TemporaryDirectory(prefix="vouch-index-") as scratch:
        left_out = LeftOut()
        catalogue = indexing.catalogued(Path(scratch) / "catalogue.sqlite", Path(scratch), left_out)
        indexing.require_named(catalogue, left_out)
        fetching = Fetching(indexing.storage, Path(scratch) / "fetched", indexing.limits)
        contents, sample = catalogue.contents, _sample(catalogue)
        failures = dict(_certain_failures(catalogue))
        encoder = indexing.opened()
        indexing.require_feasible(catalogue, encoder.dim)
        decoders = decoders_for(encoder, 1, indexing.limits, indexing.index.preview_side)
        try:
            for _ in range(2):  # the first pass includes the start of the decoder
                started = time.perf_counter()
                block = fetching.submit(sample).result()
                prepared = decoders.result(decoders.submit(block), block)
                decoding = time.perf_counter() - started
        finally:
            decoders.close()
            fetching.close()
            catalogue.close()
    each = decoding / len(sample.ids) + _seconds_of_encoding(prepared, encoder)
    pictures = [
        len(one[0]) + len(preview)
        for one, preview in zip(prepared.thumbnails, prepared.previews, strict=True)
        if one is not None
    ]
    of_item = 8 * encoder.dim + float(np.mean(pictures or [0])) + 200
    return DryRun(
        contents,
        left_out,
        len(sample.ids),
        Counter(failure.error for failure in prepared.failures.values()),
        contents.n_images * each / indexing.n_workers,
        int(3 * contents.n_images * of_item),
        shutil.disk_usage(_existing(indexing.directory)).free,
        {name: why for name, why in prepared.failures.items() if not why.passing} | failures,
        indexing.tolerance,
    )


def _certain_failures(catalogue: Catalogue) -> Iterator[tuple[str, Failure]]:
    """Yield the id and the error of each image that is missing or has an invalid field."""
    for block in catalogue.blocks():
        yield from block.failures.items()
        for name, place in zip(block.ids, block.places, strict=True):
            if place.size < 0:
                missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
                yield name, unreadable(missing) if place.offset is None else NO_IMAGE


def _sample(catalogue: Catalogue) -> Block:
    """Return a block of images that are evenly spread over the source."""
    every = max(1, catalogue.contents.n_images // N_SAMPLE)
    ids, places = [], []
    failures: dict[str, Failure] = {}
    for block in catalogue.blocks():
        for row in range(-block.number * catalogue.block % every, len(block.ids), every):
            ids.append(block.ids[row])
            places.append(block.places[row])
        failures |= block.failures
    return Block(0, tuple(ids[:N_SAMPLE]), tuple(places[:N_SAMPLE]), failures)


def _seconds_of_encoding(prepared: PreparedBlock, encoder: Encoder) -> float:
    """Return the time to encode one image, in seconds: the faster of two measurements."""
    size = batch_size(encoder)
    some = replace(prepared, ids=prepared.ids[:size], images=prepared.images[:size])
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        embed(some, encoder, "")
        seconds.append(time.perf_counter() - started)
    return min(seconds) / size


def _existing(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent."""
    return next(one for one in (directory, *directory.parents) if one.exists())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
