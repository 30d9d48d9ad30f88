"""Schemas of the items of a gallery, and of what checks find among them."""

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


class NearItem(ItemDetail):
    """An item near another item."""

    similarity: float = Field(description="Similarity of the two items, at most 1.")


class PossibleLabelError(BaseModel):
    """An item whose neighbours have another label."""

    item: ItemDetail
    suggested_label: str = Field(description="The label that most neighbours have.")
    confidence: float = Field(
        description="Share of the neighbours that have this label; nearer neighbours have a "
        "larger weight. The share is not a calibrated probability.",
    )
    neighbours: list[NearItem] = Field(description="The neighbours, nearest first.")


class ItemWithDuplicates(BaseModel):
    """An item, and other items with nearly the same embedding."""

    item: ItemDetail
    duplicates: list[NearItem] = Field(description="The other items, nearest first.")


class _Examined(BaseModel):
    gallery: str
    bundle_id: str
    n_items: int = Field(description="Number of items in the whole gallery.")
    n_examined: int = Field(description="Number of items that this page examined.")
    n_unranked: int = Field(
        description="With an `order` other than `id`: number of items to examine before the first "
        "results; else 0."
    )


class LabelErrorList(_Examined):
    """A page of possible label errors in a gallery."""

    items: list[PossibleLabelError] = Field(
        description="Possible label errors, in the order of the request."
    )
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class NearDuplicateList(_Examined):
    """A page of items that have near duplicates in the gallery."""

    items: list[ItemWithDuplicates] = Field(
        description="Items with near duplicates, in the order of the request. Both items of a pair "
        "are listed, each with the other item as its duplicate."
    )
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")
