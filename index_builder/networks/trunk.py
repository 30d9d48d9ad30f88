"""The interface of trunks, their initial weights, and their dropout."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from model_store.encoder.contract import EncoderInput


class Trunk(nn.Module):
    """Computes features, which are the input of the last layer.

    Attributes
    ----------
    preprocessing : the preprocessing of an upright RGB image, or the shape of the input vectors.
    n_features : F.
    """

    preprocessing: EncoderInput
    n_features: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of standardised ``images`` (B, 3, H, W)."""


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Seed torch from ``generator`` in this context; afterwards restore torch's random state."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


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
