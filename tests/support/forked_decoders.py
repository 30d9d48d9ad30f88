"""The indexer's decoders, forked from a process that has imported them.

Each index starts two, and importing takes them longer than decoding what tests have.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from index_builder.indexing.engines import _begin
from tests.end_to_end.forked import fork_server


def forked(n: int) -> ProcessPoolExecutor:
    """Start ``n`` decoders as `index_builder.indexing.engines._started` does."""
    return ProcessPoolExecutor(n, fork_server(), _begin)
