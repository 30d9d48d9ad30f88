"""Page faults, which memory costs that the C library has given back to the system."""

from __future__ import annotations

import resource

PAGE = resource.getpagesize()


def faults_of_blocks(n_bytes: int, n_at_once: int, n_times: int = 20) -> int:
    """Page faults of taking so many blocks and letting go of them, again and again."""

    def take() -> None:
        blocks = [bytearray(n_bytes) for _ in range(n_at_once)]
        del blocks

    take()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n_times):
        take()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
