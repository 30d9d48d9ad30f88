"""Changes of a gallery."""

from __future__ import annotations

import json
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

from model_store.gallery.filters.grammar import RepeatedName, read_json
from model_store.item_ids import MAX_ID_LENGTH, check_item_id, check_text
from service.schemas.base import RequestModel
from service.schemas.problems import Problem

MAX_METADATA_BYTES = 16 * 2**10
"""Maximum size of metadata as JSON. Keep larger data in another store, under the item's id."""

MAX_CHANGES = 32
"""Maximum number of items in a batch."""


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(metadata, allow_nan=False).encode())
    except (ValueError, RecursionError) as error:
        raise ValueError("must be JSON: no NaN, no infinity, and not too deep") from error
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"has {size} bytes as JSON, at most {MAX_METADATA_BYTES} are accepted")
    return metadata


ItemId = Annotated[
    str, Field(min_length=1, max_length=MAX_ID_LENGTH), AfterValidator(check_item_id)
]
LabelText = Annotated[
    str,
    AfterValidator(check_text),
    Field(
        max_length=200,
        json_schema_extra={
            "pattern": r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"
        },
    ),
]
Label = Annotated[
    LabelText | None,
    Field(description="What the item shows; a true match has the same label as the query."),
]
Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]


def _checked_json(text: object) -> object:
    """Refuse JSON that repeats a name; Pydantic would keep only the last value."""
    if isinstance(text, str):
        try:
            read_json(text)
        except RepeatedName as error:
            raise ValueError(str(error)) from None
        except (ValueError, RecursionError):  # Pydantic then gives a better message
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
