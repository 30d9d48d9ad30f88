"""The items of a gallery."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ItemDetail(BaseModel):
    """One item of a gallery."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    thumbnail_url: str | None = Field(description="Null in a gallery of vectors.")
    preview_url: str | None = Field(
        None,
        description="Of a picture to compare by; null where the gallery keeps thumbnails only.",
    )


class ItemList(BaseModel):
    """A page of a gallery's items."""

    gallery: str
    bundle_id: str
    n_items: int = Field(description="Of the whole gallery.")
    n_passing: int | None = Field(
        description="Of them, those that pass the filter; null without one."
    )
    items: list[ItemDetail] = Field(description="By id.")
    next_cursor: str | None = Field(description="For the next page; null on the last.")
