"""The number of torch's threads where it only computes matrices of a few images' features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

FEW = 10_000
"""Images whose features one thread is enough for."""


@contextmanager
def threads_for(n_images: int) -> Iterator[None]:
    """Give torch one thread for the features of few images, and put back what was set.

    Threads that wait for each other spin: with two of them on two cores that other processes kept
    busy, learning the whitening of 600 photographs took 22 s of computing, for 8 s with one. And
    sums of one thread are the same on every machine, however many processors it has.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if n_images <= FEW else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
