"""Dropout with masks from a generator: new masks in each training step, fixed masks for search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def dropped_out(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Set a random ``share`` of ``values`` to zero and scale up the rest (Srivastava 2014).

    Parameters
    ----------
    values : (B, ...); entries are dropped independently.
    share : in [0, 1).
    """
    if not share:
        return values
    mask = torch.rand(values.shape, generator=generator) >= share
    return kept(values, mask.to(values.device), share)


def kept(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """Set ``values`` to zero where ``mask`` is false, and divide the rest by 1 − ``share``.

    Parameters
    ----------
    values : (B, ...).
    mask : bool, broadcast against ``values``.
    """
    return values * mask / (1 - share)


def dropout_masks(
    n_passes: int, shape: Sequence[int], share: float, generator: torch.Generator
) -> Tensor:
    """Draw masks (T, *shape), bool; true means that the entry is kept."""
    return torch.rand(n_passes, *shape, generator=generator) >= share
