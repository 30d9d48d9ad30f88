"""The choice of a gallery's index: exact while small, then approximate, as small as memory demands.

All sizes here are of the parts that stay in memory: codes, ids, links and centroids. The directions
by which candidates are ranked again, variances and items lie in memory-mapped files beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from model_store.errors import ConfigError

IndexKind: TypeAlias = Literal["flat", "hnsw", "ivf_sq8", "ivf_pq"]

EXACT_BYTES = 2**25
"""Bytes of float32 directions that are still searched exactly: reading them takes about a
millisecond."""

HNSW_LINKS = 32

_ID_BYTES = 8
_FLOAT_BYTES = 4
_HNSW_BYTES = 2 * HNSW_LINKS * _FLOAT_BYTES + 16
"""Bytes of an item's links on the lowest level, and of its place, its level and the levels
above."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """The settings of an index.

    Attributes
    ----------
    kind : auto takes the first of flat, ivf_sq8, ivf_pq that suits size and budget.
    memory_budget_bytes : limit of what stays in memory.
    min_recall : recall at 10 against exact search, from which search parameters are good enough.
    seed : of centroids, and of the queries that recall is measured with.
    filter_fields : names of fields to index for filters; None for those that most items have, as
        far as the space for them goes.
    preview_side : the longest side of the pictures that are kept beside thumbnails, pixels; None
        for none.
    """

    kind: Literal["auto"] | IndexKind = "auto"
    memory_budget_bytes: int = 4 * 2**30
    min_recall: float = 0.99
    seed: int = 0
    filter_fields: tuple[str, ...] | None = None
    preview_side: int | None = None


DEFAULT_SETTINGS = IndexSettings()


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """An index to be built.

    Attributes
    ----------
    kind : how it searches.
    factory : the same in FAISS's words.
    n_bytes : that stay in memory.
    """

    kind: IndexKind
    factory: str
    n_bytes: int


def plan_index(n_items: int, dim: int, settings: IndexSettings) -> IndexPlan:
    """Choose for ``n_items`` of ``dim`` dimensions.

    Raises
    ------
    ConfigError : nothing fits into the budget.
    """
    plans = _plans(n_items, dim)
    if settings.kind == "auto":
        small = _FLOAT_BYTES * n_items * dim <= EXACT_BYTES
        wanted = [plan for plan in plans if plan.kind != "hnsw" and (small or plan.kind != "flat")]
    else:
        wanted = [plan for plan in plans if plan.kind == settings.kind]
    for plan in wanted:
        if plan.n_bytes <= settings.memory_budget_bytes:
            return plan
    least = min(plan.n_bytes for plan in wanted)
    raise ConfigError(
        f"An index ({settings.kind}) of {n_items:,} items of {dim} dimensions takes at least "
        f"{least:,} bytes of memory, the budget is {settings.memory_budget_bytes:,}. Raise it "
        "(index.memory_budget_bytes, --memory-budget), or take an encoder of fewer dimensions."
    )


def _plans(n_items: int, dim: int) -> list[IndexPlan]:
    """Everything there is, the most exact first."""
    n_lists = lists_for(n_items)
    lists = _ID_BYTES * n_items + _FLOAT_BYTES * n_lists * dim
    codebook = _FLOAT_BYTES * 256 * dim
    return [
        IndexPlan("flat", "Flat", _FLOAT_BYTES * n_items * dim),
        IndexPlan("hnsw", f"HNSW{HNSW_LINKS}_SQ8", n_items * (dim + _HNSW_BYTES)),
        IndexPlan("ivf_sq8", f"IVF{n_lists},SQ8", n_items * dim + lists),
        *(
            IndexPlan(
                "ivf_pq",
                f"IVF{n_lists},PQ{dim // width}",
                n_items * dim // width + lists + codebook,
            )
            for width in ([width for width in (2, 4, 8) if dim % width == 0] or [1])
        ),
    ]


def lists_for(n_items: int) -> int:
    """A power of two near 2 √N: reading the lists costs as much as choosing among them."""
    if n_items < 4:
        return 1
    return 1 << round(math.log2(2 * math.sqrt(n_items)))
