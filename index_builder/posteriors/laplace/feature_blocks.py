"""Features of a data set, read in blocks, because a data set can be larger than the memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from index_builder.networks.feature_blocks import FeatureBlocks


def checked_blocks(features: FeatureBlocks, weight: Tensor, n_rows: int) -> Iterator[Tensor]:
    """Yield the blocks of one pass, in the dtype and on the device of the layer's weight (D, F)."""
    received = 0
    for block in features():
        if block.ndim != 2 or block.shape[1] != weight.shape[1]:
            raise ValueError(f"{block.shape=}, wanted (n, {weight.shape[1]})")
        received += len(block)
        yield block.to(weight)
    if received != n_rows:
        raise ValueError(f"the blocks hold {received} rows, the labels {n_rows}")


def project(features: FeatureBlocks, weight: Tensor, bias: Tensor, n_rows: int) -> Tensor:
    """Embeddings h = W φ + b of all rows, (N, D)."""
    blocks = checked_blocks(features, weight, n_rows)
    return torch.cat([torch.addmm(bias, block, weight.T) for block in blocks])


def gather(features: FeatureBlocks, weight: Tensor, rows: Tensor, n_rows: int) -> Tensor:
    """Fetch the features of some rows, in the order of `rows`: (n, F).

    Parameters
    ----------
    features, weight, n_rows : as in `checked_blocks`.
    rows : (n,) int64, without repetition.
    """
    places = torch.full((n_rows,), -1, device=rows.device)
    places[rows] = torch.arange(len(rows), device=rows.device)
    gathered = weight.new_empty(len(rows), weight.shape[1])
    first = 0
    for block in checked_blocks(features, weight, n_rows):
        place = places[first : first + len(block)]
        gathered[place[place >= 0]] = block[place >= 0]
        first += len(block)
    return gathered
