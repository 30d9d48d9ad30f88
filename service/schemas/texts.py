"""Schemas of text queries."""

from __future__ import annotations

from pydantic import Field

from model_store.verdicts import MAX_TEXT_CHARACTERS
from service.schemas.search import JsonSearchOptions


class TextSearchRequest(JsonSearchOptions):
    """A search with a text in place of an image."""

    text: str = Field(
        min_length=1,
        max_length=MAX_TEXT_CHARACTERS,
        description="Description of an image: a phrase or a sentence, as in the encoder's "
        "training captions.",
        examples=["a red shoe"],
    )
