"""Why a gallery of two labels cannot know what absent queries look like: it shows one likeness.

Of two labels, one is hidden from its queries: how alike the two are is all that is seen of how
alike labels are. Prints the error of the first item's probability where half of the queries are
absent, of galleries in the order of that likeness, and how alike absent labels are to the nearer.

    python -m tests.benchmarks.promises.two_labels [--repetitions N] [--first SEED]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from model_store.encoder.contract import Encoder

from .answers import answer_all
from .catalogue import spec_of
from .measures import calibrate, stream_bins
from .worlds import World, make_world

SHARE = 0.5
N_PARTS = 5

Floats = NDArray[np.float64]


def means(encoder: Encoder, images: LabelledImages) -> Floats:
    """Return the unit mean directions (L, D) of the labels of ``images``, in their order."""
    batches = images.batches(encoder.metadata.preprocessing, 512)
    directions = np.concatenate([encoder.encode(batch).directions for _, batch in batches])
    labels = np.array(images.labels)
    centres = np.stack([directions[labels == name].mean(axis=0) for name in np.unique(labels)])
    unit: Floats = centres / np.linalg.norm(centres, axis=1, keepdims=True)
    return unit


def likeness(world: World) -> tuple[float, float]:
    """Return how alike the two labels are (cosine), and absent labels to the nearer, on average."""
    known, absent = (means(world.encoder, one) for one in (world.gallery_images, world.absent))
    return float(known[0] @ known[1]), float((absent @ known.T).max(axis=1).mean())


def too_high(world: World, seed: int) -> float:
    """Return by how much the probabilities of first items are too high, on average."""
    calibration = calibrate(world, seed)
    matched, absent = (
        answer_all(world.encoder, world.gallery, calibration, images)
        for images in (world.matched, world.absent)
    )
    weights = np.repeat(
        [(1 - SHARE) / len(matched), SHARE / len(absent)], [len(matched), len(absent)]
    )
    bins = stream_bins(calibration, matched, absent, weights, SHARE)
    return sum(one.weight * (one.probability - one.share) for one in bins)


def in_parts(values: Floats, errors: Floats) -> list[tuple[float, float, float]]:
    """Return least and greatest value and mean error of equal parts, in the order of the values."""
    parts = np.array_split(np.argsort(values, kind="stable"), N_PARTS)
    return [(values[p].min(), values[p].max(), errors[p].mean()) for p in parts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    options = parser.parse_args(arguments)
    rows = []
    for seed in range(options.first, options.first + options.repetitions):
        with TemporaryDirectory() as directory:
            world = make_world(spec_of("2 labels"), seed, Path(directory))
            rows.append((*likeness(world), too_high(world, seed)))
    alike, of_absent, errors = np.array(rows).T
    print(f"absent labels, to the nearer of two: cosine {of_absent.mean():.2f}")
    print(f"correlation of the two labels' with the error {np.corrcoef(alike, errors)[0, 1]:.2f}")
    for low, high, error in in_parts(alike, errors):
        print(f"two labels at {low:+.2f} to {high:+.2f}: probabilities {error:+.3f} too high")


if __name__ == "__main__":
    main()
