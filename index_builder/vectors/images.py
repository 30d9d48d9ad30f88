"""Vectors of many images: each image is decoded and computed once, however many steps want it.

What is known of an image is read back, bit for bit; the rest is decoded and computed by as many
threads as there are processors, in batches of one size, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.progress import progress_bar
from index_builder.vectors.store import Vector, VectorFile
from model_store.encoder.contract import EncoderInput
from model_store.installation import installed_versions
from model_store.processors import usable_processors

Positions = NDArray[np.int64]

Compute = Callable[[Pixels], Vector]
"""Images (n, H, W, 3) uint8 to vectors (n, size) float32; called by several threads at once."""

Seen = Callable[[int, Pixels], None]
"""Told the position and the pixels of each image that is decoded, by several threads at once."""

CPU_BATCH = 8
"""On one thread of a CPU larger ones are no faster (MobileNetV2 at 224 px: 125 images a second of
one thread alone, 121 of batches of 8, 102 of 64), and take eight times the memory."""

AT_ONCE = 256
"""Images that are looked up, computed and kept together, or a multiple of that."""


@dataclass(frozen=True, slots=True)
class ImageVectors:
    """The vectors that a network computes of images.

    Attributes
    ----------
    compute : the network.
    maker : names the network and all that its numbers depend on but the images.
    preprocessing : how an upright RGB image becomes its input; or the vectors that are its input.
    batch : images that it is given together; a batch that lacks some is filled up with black.
    known : where vectors are kept; None keeps none.
    """

    compute: Compute
    maker: str
    preprocessing: EncoderInput
    batch: int
    known: VectorFile | None = None

    def of(
        self, images: LabelledImages, description: str, seen: Seen | None = None
    ) -> Iterator[tuple[Positions, Vector]]:
        """Give positions (n,) and vectors (n, size) of ``images``, some at a time and in order.

        Parameters
        ----------
        description : of the progress.
        seen : told of each image that had to be decoded.
        """
        n = usable_processors()
        at_once = AT_ONCE * -(-4 * n * self.batch // AT_ONCE)
        with ThreadPoolExecutor(n, thread_name_prefix="vectors") as pool, progress_bar() as bar:
            task = bar.add_task(description, total=len(images))
            computed = partial(bar.advance, task)
            for start in range(0, len(images), at_once):
                positions = np.arange(start, min(start + at_once, len(images)))
                compute = partial(self._computed_by, pool, images, positions, seen, computed)
                contents = images.subset(positions).contents()
                found = self._looked_up(contents, len(positions), compute)
                bar.update(task, completed=start + len(positions))
                yield positions, found

    def of_prepared(self, images: Pixels, contents: Sequence[bytes] | None) -> Vector:
        """Return vectors (n, size) of n images that are at the network's input size already.

        Parameters
        ----------
        contents : see `LabelledImages.contents`.
        """
        return self._looked_up(contents, len(images), lambda rows: self._computed(images[rows]))

    def _looked_up(
        self,
        contents: Sequence[bytes] | None,
        n: int,
        compute: Callable[[Positions], Vector],
    ) -> Vector:
        """Return n vectors, those of unknown rows by ``compute``, which are then known."""
        if self.known is None or contents is None:
            return compute(np.arange(n))
        known = self.known.read(self.maker, contents)
        missing = np.array([row for row, one in enumerate(contents) if one not in known], np.int64)
        if len(missing):
            computed = compute(missing)
            of_missing = [contents[row] for row in missing.tolist()]
            self.known.write(self.maker, of_missing, computed)
            known |= dict(zip(of_missing, computed, strict=True))
        return np.stack([known[one] for one in contents])

    def _computed_by(
        self,
        pool: ThreadPoolExecutor,
        images: LabelledImages,
        positions: Positions,
        seen: Seen | None,
        computed: Callable[[int], None],
        rows: Positions,
    ) -> Vector:
        """Return the vectors of the images at ``positions[rows]``, a batch a thread at a time.

        Parameters
        ----------
        computed : told how many images more are done.
        """
        chosen = positions[rows]
        batches = [chosen[i : i + self.batch] for i in range(0, len(chosen), self.batch)]
        parts = []
        for part in pool.map(partial(self._decoded, images, seen), batches):
            parts.append(part)
            computed(len(part))
        return np.concatenate(parts)

    def _decoded(self, images: LabelledImages, seen: Seen | None, positions: Positions) -> Vector:
        """Decode images and return their vectors."""
        expected = self.preprocessing
        prepared = np.empty((len(positions), *expected.shape), dtype=expected.dtype)
        for row, position in enumerate(positions.tolist()):
            pixels = images.pixels(position, expected.smallest_side)
            prepared[row] = expected(pixels)
            if seen is not None:
                seen(position, pixels)
        return self._computed(prepared)

    def _computed(self, prepared: Pixels) -> Vector:
        """Compute vectors of any number of images, in batches of one size."""
        found = []
        for start in range(0, len(prepared), self.batch):
            batch = prepared[start : start + self.batch]
            n_images = len(batch)
            if n_images < self.batch:
                blank = np.zeros((self.batch - n_images, *batch.shape[1:]), dtype=batch.dtype)
                batch = np.concatenate([batch, blank])
            found.append(self.compute(batch)[:n_images])
        return np.concatenate(found)


def libraries() -> str:
    """Name the versions of what decodes and computes: others may round otherwise."""
    return versions(("onnxruntime", "onnxruntime-gpu", "pillow", "numpy"))


def versions(distributions: Iterable[str]) -> str:
    """Name the versions of those of ``distributions`` that are installed."""
    return " ".join(starmap("{} {}".format, sorted(installed_versions(distributions).items())))
