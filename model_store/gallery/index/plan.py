"""Chooses an index: exact for a small gallery, approximate for a large gallery.

The size of an index counts only the parts that stay in memory: codes, ids, links and centroids.
Items, variances, and the directions for re-ranking are in memory-mapped files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from model_store.errors import ConfigError

IndexKind: TypeAlias = Literal["flat", "hnsw", "ivf_sq8", "ivf_pq"]

EXACT_BYTES = 2**25
"""Maximum size of an exact index in bytes. An exact index contains only float32 directions. A
search reads an index of this size in about a millisecond."""

HNSW_LINKS = 32

_ID_BYTES = 8
_FLOAT_BYTES = 4
_HNSW_BYTES = 2 * HNSW_LINKS * _FLOAT_BYTES + 16
"""Bytes that an item takes in the graph. Its links on the lowest level take 4 bytes each. Its
position, its level and its links on higher levels take 16 bytes together."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """The settings of an index.

    Attributes
    ----------
    kind : kind of the index; auto chooses the first of flat, ivf_sq8 and ivf_pq that suits the
        number of items and the memory budget.
    memory_budget_bytes : maximum bytes of the index that stay in memory.
    min_recall : minimum recall at 10 against exact search. The build chooses the cheapest search
        parameters that reach this recall.
    seed : random seed for the centroids and for the queries that measure recall.
    filter_fields : names of fields to index for filters; None chooses the most frequent fields,
        within a size limit.
    preview_side : longest side of the previews in pixels; None for no previews.
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
    """The description of an index to build.

    Attributes
    ----------
    kind : kind of the index.
    factory : FAISS factory string.
    n_bytes : size of the index in memory, in bytes.
    """

    kind: IndexKind
    factory: str
    n_bytes: int


def plan_index(n_items: int, dim: int, settings: IndexSettings) -> IndexPlan:
    """Choose the index for ``n_items`` items with ``dim`` dimensions.

    Raises
    ------
    ConfigError : no index fits into the memory budget.
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
        f"{least:,} bytes of memory, the budget is {settings.memory_budget_bytes:,}. "
        "Raise the budget (index.memory_budget_bytes, --memory-budget), or use an encoder with "
        "fewer dimensions."
    )


def _plans(n_items: int, dim: int) -> list[IndexPlan]:
    """Return all possible plans; the most exact plan comes first."""
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
    """Return the number of inverted lists: a power of two near 2 √N."""
    if n_items < 4:
        return 1
    return 1 << round(math.log2(2 * math.sqrt(n_items)))
