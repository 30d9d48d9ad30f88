"""Errors in the format of RFC 9457."""

from __future__ import annotations

from pydantic import BaseModel, Field


class FieldError(BaseModel):
    """A wrong field of a request."""

    pointer: str
    detail: str


class Problem(BaseModel):
    """An error in the format of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(description="Stable name of the kind of error, for programs.")
    request_id: str
    errors: list[FieldError] | None = None
