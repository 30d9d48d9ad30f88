"""Schemas of the items of a gallery."""

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
        description="URL of a larger picture; null if the gallery keeps thumbnails only.",
    )


class ItemList(BaseModel):
    """A page of a gallery's items."""

    gallery: str
    bundle_id: str
    n_items: int = Field(description="Number of items in the whole gallery.")
    n_passing: int | None = Field(
        description="Number of items that pass the filter; null without a filter."
    )
    items: list[ItemDetail] = Field(description="Items, ordered by id.")
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")
