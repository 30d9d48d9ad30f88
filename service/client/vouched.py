"""Only results with the verdict `match`, for programs that would use any result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service import schemas
from service.client.client import VouchClient

MIN_MATCH_PROBABILITY = 0.5
"""The least of results behind the first, of which alone `match` speaks: more likely right than
wrong."""


def vouched_results(
    client: VouchClient,
    gallery: str,
    image: Path | bytes,
    limit: int,
    min_match_probability: float = MIN_MATCH_PROBABILITY,
) -> list[schemas.Result]:
    """Return the results of a search with verdict ``match``; of any other verdict, none.

    Parameters
    ----------
    min_match_probability : of results behind the first.

    Raises
    ------
    VouchProblem : such as ``corrupt_image``.
    """
    answer = client.search(gallery, image, limit=limit, on_uncertain="refuse")
    if answer.verdict != "match":
        return []
    return [
        one
        for one in answer.results
        if one.rank == 1 or (one.match_probability or 0) >= min_match_probability
    ]


def text_of(result: schemas.Result, text_key: str | None) -> str:
    """Return an item as text: what its metadata has under a key, else its label, else its id."""
    text = None if text_key is None else result.metadata.get(text_key)
    return str(text if text is not None else result.label or result.id)


def metadata_of(gallery: str, result: schemas.Result) -> dict[str, Any]:
    """Return an item's metadata; Vouch's own is under the key ``vouch``."""
    own = result.model_dump(
        include={"id", "label", "rank", "similarity", "match_probability", "thumbnail_url"}
    )
    return {**result.metadata, "vouch": {"gallery": gallery, **own}}
