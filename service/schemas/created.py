"""Schemas of galleries that are created, described, renamed and dropped, and of a key's usage."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from model_store.bundles.directory import GALLERY_NAME
from service.schemas.requests import RequestModel

Name = Annotated[
    str,
    Field(
        pattern=GALLERY_NAME,
        description="1 to 64 lower-case letters, digits, dots, hyphens and underscores, the first "
        "a letter or a digit.",
    ),
]
Title = Annotated[str, Field(max_length=200, description="For people.")]
Description = Annotated[str, Field(max_length=4000, description="What it holds, for people.")]


class NewGallery(RequestModel):
    """A gallery that is to be there."""

    name: Name
    like: str | None = Field(
        None,
        description="The gallery whose encoder it has; left out: the first that the service was "
        "started with.",
    )
    title: Title = ""
    description: Description = ""


class GalleryChange(RequestModel):
    """A new title or description of a gallery; the one that is left out is kept."""

    title: Title | None = None
    description: Description | None = None


class GalleryRename(RequestModel):
    """The new name of a gallery."""

    name: Name


class GalleryDropped(BaseModel):
    """A dropped gallery."""

    gallery: str


class SearchUsage(BaseModel):
    """The searches of a period that a key allows."""

    limit: int
    used: int = Field(
        description="Counted in Redis for all replicas; without it by this process, since it began."
    )
    period_s: int
    resets_in_s: float


class GalleryUsage(BaseModel):
    """The galleries that a key may have created."""

    limit: int
    used: int


class Usage(BaseModel):
    """The scope, galleries and quotas of the caller, and how much of them is used."""

    key: str | None = Field(description="Its id; null without a key.")
    name: str | None
    scope: str
    galleries: list[str] | None = Field(
        description="That the key is for, `*` for any letters; null: all."
    )
    rate_limit: str | None = Field(description="Of requests of any kind; null: none.")
    searches: SearchUsage | None = Field(description="Null: without limit.")
    created_galleries: GalleryUsage | None = Field(description="Null: without limit.")
    max_items: int | None = Field(description="In each gallery; null: without limit.")
