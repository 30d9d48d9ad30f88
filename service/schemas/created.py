"""Schemas of requests that create, describe, rename or drop a gallery, and of a key's usage."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from model_store.bundles.directory import GALLERY_NAME
from service.schemas.requests import RequestModel

Name = Annotated[
    str,
    Field(
        pattern=GALLERY_NAME,
        description="1 to 64 lower-case letters, digits, dots, hyphens and underscores. The first "
        "character is a letter or a digit.",
    ),
]
Title = Annotated[str, Field(max_length=200, description="Title to display.")]
Description = Annotated[str, Field(max_length=4000, description="Description to display.")]


class NewGallery(RequestModel):
    """A gallery to create."""

    name: Name
    like: str | None = Field(
        None,
        description="Gallery whose encoder the new gallery uses. Default: the first gallery that "
        "the service was started with, else the oldest gallery that the key can use. If there is "
        "none, the encoder that comes with Vouch.",
    )
    title: Title = ""
    description: Description = ""


class GalleryChange(RequestModel):
    """A new title or description of a gallery; an omitted field does not change."""

    title: Title | None = None
    description: Description | None = None


class GalleryRename(RequestModel):
    """The new name of a gallery."""

    name: Name


class GalleryDropped(BaseModel):
    """A dropped gallery."""

    gallery: str


class SearchUsage(BaseModel):
    """The search quota of a key, and how much of the quota is used."""

    limit: int
    used: int = Field(
        description="Searches in this period. Redis counts the searches of all replicas. Without "
        "Redis, each process counts alone."
    )
    period_s: int
    resets_in_s: float


class GalleryUsage(BaseModel):
    """A key's quota of created galleries, and how much of the quota is used."""

    limit: int
    used: int


class Usage(BaseModel):
    """The caller's scope, galleries and quotas, and how much of each quota is used."""

    key: str | None = Field(description="Id of the key; null without a key.")
    name: str | None
    scope: str
    galleries: list[str] | None = Field(
        description="Galleries that the key can use; `*` matches any characters. Null: all "
        "galleries."
    )
    rate_limit: str | None = Field(
        description="Rate limit for requests of any kind; null: no limit."
    )
    searches: SearchUsage | None = Field(description="Search quota; null: no limit.")
    created_galleries: GalleryUsage | None = Field(
        description="Quota of created galleries; null: no limit."
    )
    max_items: int | None = Field(
        description="Maximum number of items in each gallery; null: no limit."
    )
