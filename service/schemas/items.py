"""Schemas of items, of what checks find among them, and of changes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    field_validator,
    model_validator,
)

from model_store.gallery.filters.grammar import UnfitJson, read_json
from model_store.items import (
    MAX_ID_LENGTH,
    MAX_LABEL_LENGTH,
    check_item_id,
    check_metadata,
    check_new_label,
)

from .base import Problem, RequestModel


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


MAX_CHANGES = 32
"""Maximum number of items in a batch."""


ItemId = Annotated[
    str, Field(min_length=1, max_length=MAX_ID_LENGTH), AfterValidator(check_item_id)
]
LabelText = Annotated[
    str,
    AfterValidator(check_new_label),
    Field(
        min_length=1,
        max_length=MAX_LABEL_LENGTH,
        json_schema_extra={
            "pattern": r"^(?!\s)(?!.*\s$)[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"
        },
    ),
]
Label = Annotated[
    LabelText | None,
    Field(description="What the item shows; a true match has the same label as the query."),
]
Metadata = Annotated[dict[str, Any], AfterValidator(check_metadata)]


def _checked_json(text: object) -> object:
    """Refuse unfit JSON; of a repeated name, Pydantic would keep only the last value."""
    if isinstance(text, str):
        try:
            read_json(text)
        except UnfitJson as error:
            raise ValueError(str(error)) from None
        except ValueError:  # Pydantic then gives a better message
            pass
    return text


class UploadOptions(RequestModel):
    """The label and metadata of an item."""

    label: Label = None
    metadata: Annotated[Json[Metadata], BeforeValidator(_checked_json)] = Field(
        default={}, description="Your own JSON object, at most 16 KiB."
    )


class ItemChange(RequestModel):
    """The new label or metadata of an item; an omitted field does not change."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    label: Label = Field(None, description="The new label; null removes the label.")
    metadata: Metadata = Field(
        {}, description="Your own JSON object, at most 16 KiB; it replaces the stored object."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> ItemChange:
        if not self.model_fields_set:
            raise ValueError("names no field to change: send `label`, `metadata` or both")
        return self


class BatchEntry(RequestModel):
    """One item of a batch; its image is the file at the same position."""

    id: ItemId
    label: Label = None
    metadata: Metadata = Field(default={}, description="Your own JSON object, at most 16 KiB.")


class BatchOptions(RequestModel):
    """The items of a batch."""

    items: Annotated[Json[list[BatchEntry]], BeforeValidator(_checked_json)] = Field(
        description='A JSON list, one entry for each image and in their order: `{"id": …, '
        '"label": …, "metadata": {…}}`.',
        json_schema_extra={"minLength": 2},
    )

    @field_validator("items")
    @classmethod
    def _have_ids_of_their_own(cls, items: list[BatchEntry]) -> list[BatchEntry]:
        if len({item.id for item in items}) != len(items):
            raise ValueError("ids repeat; each item of a batch needs a different id")
        return items


class ItemWritten(BaseModel):
    """A change that is stored on disk and visible to every later search."""

    request_id: str = Field(description="Id of the request.")
    gallery: str
    id: str
    existed: bool = Field(description="Whether an item with this id existed before.")
    version: int = Field(description="Number of changes to the gallery so far.")


class BatchItemWritten(BaseModel):
    """The outcome of one item of a batch: written, or a problem."""

    index: int = Field(description="Position of the item in the batch, from 0.")
    id: str
    status: int = Field(description="HTTP status that a request with only this item would get.")
    written: ItemWritten | None
    problem: Problem | None


class BatchWritten(BaseModel):
    """The outcome of a batch; all items without a problem were written in one transaction."""

    request_id: str = Field(description="Id of the request.")
    gallery: str
    items: list[BatchItemWritten] = Field(description="Outcomes in the order of the batch.")
