"""Torch's initialisation of layers, reproducible by a generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Draw layers created in the context from ``generator``; torch's random state is kept."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
