"""Schemas of the map of a gallery."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, WithJsonSchema

from service.schemas.items import ItemDetail

Base64 = Annotated[str, WithJsonSchema({"type": "string", "contentEncoding": "base64"})]
"""Little-endian numbers in base64; the field's description states their type."""


class MapColour(BaseModel):
    """A colour of the map: a value of the field, or a range of numbers."""

    value: str | int | float | bool | None = Field(description="Null for a range.")
    least: float | None = Field(
        description="Start of the range; null if the colour stands for a value."
    )
    greatest: float | None = Field(
        description="End of the range; only the last range includes its end. Null for a value."
    )
    n_items: int = Field(description="Number of items on the map with this colour.")


class GalleryMap(BaseModel):
    """The items of a gallery in two dimensions.

    The arrays `rows`, `x`, `y` and `codes` have one element for each item, in the same order.
    """

    gallery: str
    bundle_id: str
    n_items: int = Field(description="Number of items in the whole gallery.")
    n_passing: int = Field(
        description="Number of items that pass the filter; all items without a filter."
    )
    n_shown: int = Field(
        description="Number of items on the map; fewer than `n_passing` if the map shows a sample."
    )
    variance_shares: list[float] = Field(
        description="Share of the variance of the embeddings along each axis."
    )
    colour_by: str = Field(description="Field of the colours.")
    colours: list[MapColour] = Field(
        description="The most frequent values first, or ranges in ascending order."
    )
    rows: Base64 = Field(
        description="uint32: number of the item for `GET …/map/items`, valid for this bundle."
    )
    x: Base64 = Field(description="uint16: coordinate along the first axis.")
    y: Base64 = Field(description="uint16: coordinate along the second axis, in the same scale.")
    codes: Base64 = Field(description="uint8: index in `colours`, or 255 for other values.")


class MapItem(ItemDetail):
    """One item of a gallery, and its number on the map."""

    row: int


class MapItems(BaseModel):
    """Items of a map."""

    gallery: str
    bundle_id: str
    items: list[MapItem] = Field(
        description="Items in ascending order of `row`. Deleted and replaced items are left out."
    )
