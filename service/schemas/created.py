"""Schemas of requests that calibrate, create, describe, rename or drop a gallery; a key's usage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from model_store.bundles.directory import GALLERY_NAME
from service.schemas.base import RequestModel

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


Share = Annotated[float | None, Field(gt=0, lt=1)]


class CalibrationWanted(RequestModel):
    """Error bounds of the new calibration.

    An omitted bound keeps its value. In the first calibration, it gets its default.
    """

    max_error: Share = Field(
        None, description="Maximum share of `match` verdicts that are wrong. Default: 0.05."
    )
    max_false_match_rate: Share = Field(
        None,
        description="Maximum share of `match` verdicts among queries without a match in the "
        "gallery. Default: no bound.",
    )
    expected_absent: Share = Field(
        None, description="Assumed share of queries without a match in the gallery."
    )
    alpha: Share = Field(
        None,
        description="Share of ordinary queries that are flagged as out of distribution. Default: "
        "0.05.",
    )
    coverage: Share = Field(
        None,
        description="Minimum share of result sets that contain a match, if there is one. Default: "
        "0.95.",
    )


class CalibrationRun(BaseModel):
    """The last calibration that was started over HTTP, and the items that can be queries."""

    state: Literal["none", "running", "succeeded", "failed"] = Field(
        description="`none`: no calibration was started over HTTP."
    )
    started_at: str | None = Field(description="ISO 8601.")
    ended_at: str | None = Field(description="ISO 8601.")
    bundle_id: str | None = Field(description="The new bundle; null unless the run succeeded.")
    reason: str | None = Field(description="Why the run failed, and what to do.")
    n_item_queries: int | None = Field(
        description="Number of items that share their label with another item. Each can be a query "
        "of the first calibration, which needs at least 50; copies do not count there. Null for a "
        "gallery that cannot be calibrated over HTTP."
    )
