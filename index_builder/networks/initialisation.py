"""Layers that begin as torch makes them, and yet the same for the same generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Layers made within are drawn from ``generator`` alone; torch's own state stays."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
