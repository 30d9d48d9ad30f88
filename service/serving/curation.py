"""Checks a gallery for its curator; each request checks a part of limited size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np

from model_store.bundles.bundle import Bundle
from model_store.curation import Examined, FoundT, Rows, examine
from model_store.gallery import Gallery, Item

BUDGET_S = 0.5
"""Maximum seconds of computation of one request; after this time a page ends, even without
results."""


@dataclass(frozen=True, slots=True)
class ExaminedPage(Generic[FoundT]):
    """The problems that were found in a part of a gallery, and the items with these problems.

    Attributes
    ----------
    items : the items, by row number.
    """

    gallery: Gallery
    part: Examined[FoundT]
    items: dict[int, Item]


def examined_page(
    bundle: Bundle,
    after: int | None,
    limit: int,
    check: Callable[[Gallery, Rows], list[FoundT]],
    rows_of: Callable[[FoundT], Rows],
) -> ExaminedPage[FoundT]:
    """Check the items after the row ``after``, in the order of their ids; see `examine`.

    Parameters
    ----------
    rows_of : returns the rows of the items in a result.
    """
    gallery = bundle.retriever.gallery
    if after is not None and after >= gallery.n_rows and bundle.live is not None:
        gallery = bundle.live.refresh()  # the cursor came from a replica with newer changes
    if after is not None and after >= gallery.n_rows:
        return ExaminedPage(gallery, Examined([], 0, None), {})
    part = examine(gallery, after, check, limit, BUDGET_S)
    named = [rows_of(one) for one in part.found]
    rows = np.unique(np.concatenate(named)) if named else np.empty(0, dtype=np.int64)
    items = gallery.items(rows) if rows.size else []
    return ExaminedPage(gallery, part, dict(zip(rows.tolist(), items, strict=True)))
