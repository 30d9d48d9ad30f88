"""Schemas of queries in words."""

from __future__ import annotations

from pydantic import Field

from model_store.verdicts import MAX_TEXT_CHARACTERS
from service.schemas.search import JsonSearchOptions


class TextSearchRequest(JsonSearchOptions):
    """A search with a text in place of an image."""

    text: str = Field(
        min_length=1,
        max_length=MAX_TEXT_CHARACTERS,
        description="What the image shows, in words, as the encoder was trained on: a phrase or a "
        "sentence.",
        examples=["a red shoe"],
    )
