"""Schemas of queries that were embedded, or answered, by another system."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from model_store.records import RollUp
from model_store.verdicts import Verdict
from service.schemas.base import HasReason, RequestModel
from service.schemas.bundles import BundleState
from service.schemas.queries import Query
from service.schemas.search import (
    GUARANTEED,
    ROLL_UP,
    AbsentShare,
    DecisionFields,
    JsonSearchFields,
    ResultSet,
)

MAX_NUMBERS = 16_384
"""Maximum number of dimensions of a vector."""

MAX_NEIGHBOURS = 1_000


def _as_numbers(value: object) -> object:
    """Decode base64 of little-endian float32 to numbers; return any other value unchanged."""
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
    """A query that another system has embedded with the gallery's encoder.

    If the gallery was built from vectors, send a vector of the same kind. The service then applies
    the gallery's learned encoder to this vector.
    """

    mean: Numbers = Field(
        description="Mean of the embedding: `direction` from `embed`, or a raw vector."
    )
    variance: Numbers | None = Field(
        None,
        description="Variance of the embedding, in squared units of `mean`; default: zero. A "
        "variance is an error if the gallery was built from vectors without variances.",
    )
    features: Numbers | None = Field(
        None,
        description="Penultimate activations, for the outlier score. Required if the gallery is "
        "calibrated and its encoder has a posterior, unless `outlier_score` is given. If the "
        "encoder has no posterior, the vector itself is used as the features.",
    )
    outlier_score: float | None = Field(
        None, allow_inf_nan=False, description="Outlier score from `embed`, in place of `features`."
    )
    encoder_fingerprint: str | None = Field(
        None,
        max_length=64,
        description="Fingerprint of the encoder that computed the vector. The request fails if "
        "the gallery has another encoder.",
    )


class VectorSearchRequest(VectorFields, JsonSearchFields):
    """A search with a vector in place of an image."""


class Neighbour(RequestModel):
    """An item that another store has found."""

    id: str = Field(min_length=1, max_length=512)
    label: str | None = Field(None, max_length=512)
    similarity: float | None = Field(
        None, description="Cosine to the query; give it for all neighbours or for none."
    )
    vector: Numbers | None = Field(
        None, description="Vector of the item, in place of `similarity`."
    )


class DecisionRequest(VectorFields, DecisionFields):
    """A query, and the neighbours that another store has found for it."""

    neighbours: list[Neighbour] = Field(
        min_length=1,
        max_length=MAX_NEIGHBOURS,
        description="Nearest first, by cosine. Send as many neighbours as the calibration used: "
        "200, or fewer in a small gallery.",
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
    gallery: str = Field(description="Gallery whose calibration was used.")
    verdict: Verdict
    reason: str | None = Field(description="Why less is guaranteed than requested; else null.")
    guaranteed: bool = GUARANTEED
    roll_up: RollUp | None = ROLL_UP
    no_match_probability: float | None
    absent: AbsentShare | None
    query: Query
    neighbours: list[DecidedNeighbour] = Field(
        description="Neighbours in the order of the request."
    )
    result_set: ResultSet | None
    bundle: BundleState
    timing_ms: dict[str, float]
