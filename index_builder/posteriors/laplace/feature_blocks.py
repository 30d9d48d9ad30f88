"""Features of a data set, read in blocks, because a data set can be larger than the memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from index_builder.arrays import Array, FeatureBlocks, affine, like, namespace, to_numpy


def checked_blocks(features: FeatureBlocks, weight: Array, n_rows: int) -> Iterator[Array]:
    """Yield the blocks of one pass, in the number type of the layer's weight (D, F)."""
    received = 0
    for block in features():
        if block.ndim != 2 or block.shape[1] != weight.shape[1]:
            raise ValueError(f"{block.shape=}, wanted (n, {weight.shape[1]})")
        received += len(block)
        yield like(block, weight)
    if received != n_rows:
        raise ValueError(f"the blocks hold {received} rows, the labels {n_rows}")


def project(features: FeatureBlocks, weight: Array, bias: Array, n_rows: int) -> Array:
    """Embeddings h = W φ + b of all rows, (N, D)."""
    blocks = checked_blocks(features, weight, n_rows)
    return namespace(weight).concat([affine(block, weight, bias) for block in blocks])


def gather(features: FeatureBlocks, weight: Array, rows: Array, n_rows: int) -> Array:
    """Fetch the features of some rows, in the order of `rows`: (n, F).

    Parameters
    ----------
    features, weight, n_rows : as in `checked_blocks`.
    rows : (n,) int64, without repetition.
    """
    places = np.full(n_rows, -1)
    places[to_numpy(rows)] = np.arange(len(rows))
    shape = len(rows), weight.shape[1]
    gathered = namespace(weight).empty(shape, dtype=weight.dtype, device=weight.device)
    first = 0
    for block in checked_blocks(features, weight, n_rows):
        place = places[first : first + len(block)]
        kept = np.flatnonzero(place >= 0)
        gathered[place[kept]] = block[kept]
        first += len(block)
    return gathered
