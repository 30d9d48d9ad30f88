"""Schemas of queries that were embedded, or answered, by another system."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from model_store.verdicts import Verdict
from service.schemas.bundles import BundleState
from service.schemas.queries import Query
from service.schemas.reasons import HasReason
from service.schemas.requests import RequestModel
from service.schemas.search import (
    GUARANTEED,
    ROLL_UP,
    AbsentShare,
    DecisionOptions,
    JsonSearchOptions,
    ResultSet,
    RollUp,
)

MAX_NUMBERS = 16_384
"""In a vector; no encoder in use gives so many."""

MAX_NEIGHBOURS = 1_000


def _as_numbers(value: object) -> object:
    """Read numbers, whether they come as such or as the base64 of little-endian float32."""
    if not isinstance(value, str):
        return value
    try:
        data = base64.b64decode(value, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    except (binascii.Error, ValueError, struct.error) as error:
        raise ValueError("it is neither numbers nor base64 of float32") from error


Numbers = Annotated[
    list[float],
    BeforeValidator(_as_numbers),
    Field(min_length=1, max_length=MAX_NUMBERS),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "number"},
                    "minItems": 1,
                    "maxItems": MAX_NUMBERS,
                },
                {
                    "type": "string",
                    "contentEncoding": "base64",
                    "minLength": 8,
                    "pattern": "^(?:[A-Za-z0-9+/]{16})*"
                    "(?:[A-Za-z0-9+/]{6}==|[A-Za-z0-9+/]{11}=)?$",  # of whole float32
                },
            ],
            "description": "Numbers, or base64 of little-endian float32.",
        }
    ),
]


class VectorFields(RequestModel):
    """A query as the gallery's encoder has embedded it, elsewhere.

    Of a gallery that was made of vectors, one as those were; its encoder adds what it has learned.
    """

    mean: Numbers = Field(description="Of the embedding: `direction` of `embed`, or a raw vector.")
    variance: Numbers | None = Field(
        None,
        description="Of the embedding, in squared units of `mean`; left out: zero. Refused where "
        "the gallery was made of vectors without any.",
    )
    features: Numbers | None = Field(
        None,
        description="Penultimate activations, which tell outliers. Needed where the gallery is "
        "calibrated, unless `outlier_score` is given or the encoder has no posterior, so that its "
        "vectors are its features.",
    )
    outlier_score: float | None = Field(
        None, allow_inf_nan=False, description="As `embed` answers it, in place of `features`."
    )
    encoder_fingerprint: str | None = Field(
        None, max_length=64, description="Of the encoder; refused if it is not the gallery's."
    )


class VectorSearchRequest(VectorFields, JsonSearchOptions):
    """A search with a vector in place of an image."""


class Neighbour(RequestModel):
    """An item that another store has found."""

    id: str = Field(min_length=1, max_length=512)
    label: str | None = Field(None, max_length=512)
    similarity: float | None = Field(
        None, description="Cosine to the query; for all neighbours, or for none."
    )
    vector: Numbers | None = Field(None, description="In its place: the item's own vector.")


class DecisionRequest(VectorFields, DecisionOptions):
    """A query, and the neighbours that another store has found for it."""

    neighbours: list[Neighbour] = Field(
        min_length=1,
        max_length=MAX_NEIGHBOURS,
        description="Nearest first, by cosine; as many as the calibration was fitted to, 200 for "
        "all but small galleries.",
    )


class DecidedNeighbour(BaseModel):
    """A neighbour with its probability."""

    id: str
    label: str | None
    similarity: float
    match_probability: float | None


class DecisionAnswer(HasReason):
    """The decision on the neighbours of a query that another store has found."""

    request_id: str
    gallery: str = Field(description="Whose calibration decided.")
    verdict: Verdict
    reason: str | None = Field(description="Why less is promised than requested; else null.")
    guaranteed: bool = GUARANTEED
    roll_up: RollUp | None = ROLL_UP
    no_match_probability: float | None
    absent: AbsentShare | None
    query: Query
    neighbours: list[DecidedNeighbour] = Field(description="In the order that they were sent in.")
    result_set: ResultSet | None
    bundle: BundleState
    timing_ms: dict[str, float]
