"""Whether the service lives, and answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Live(BaseModel):
    """The process runs."""

    status: Literal["live"] = "live"


class ReadyGallery(BaseModel):
    """A gallery whose canary query was answered."""

    name: str
    bundle_id: str
    provider: str
    canary_ms: float


class Ready(BaseModel):
    """The service can answer: a canary was just encoded and searched in every gallery."""

    status: Literal["ready"] = "ready"
    galleries: list[ReadyGallery]
    cache: str = Field(description="`redis`, `redis (unreachable)` or `process`.")
