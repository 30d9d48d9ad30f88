"""Results only for the verdict `match`, for programs that use every result they get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service import schemas
from service.client.client import VouchClient

MIN_MATCH_PROBABILITY = 0.5
"""Minimum match probability of results after the first. The verdict covers only the first
result."""


def vouched_results(
    client: VouchClient,
    gallery: str,
    image: Path | bytes,
    limit: int,
    min_match_probability: float = MIN_MATCH_PROBABILITY,
) -> list[schemas.Result]:
    """Return the results of a search if its verdict is ``match``; else no results.

    Parameters
    ----------
    min_match_probability : minimum match probability of results after the first.

    Raises
    ------
    VouchProblem : for example ``corrupt_image``.
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
    """Return the metadata value at ``text_key``, else the label, else the id."""
    text = None if text_key is None else result.metadata.get(text_key)
    return str(text if text is not None else result.label or result.id)


def metadata_of(gallery: str, result: schemas.Result) -> dict[str, Any]:
    """Return an item's metadata, with Vouch's result under the key ``vouch``."""
    own = result.model_dump(
        include={"id", "label", "rank", "similarity", "match_probability", "thumbnail_url"}
    )
    return {**result.metadata, "vouch": {"gallery": gallery, **own}}
