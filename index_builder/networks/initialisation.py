"""Reproducible initial weights: torch's initialisation, seeded by a generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Seed torch from ``generator`` in this context; afterwards restore torch's random state."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
