"""Schemas of a query, before its neighbours."""

from __future__ import annotations

from pydantic import BaseModel, Field

from model_store.verdicts import Level
from service.schemas.reasons import HasReason


class PictureState(BaseModel):
    """The state of the picture: how far blur, noise, darkness or a crop move its embedding."""

    value: float = Field(
        description="Expected displacement of the embedding: 1 − its cosine to that of the same "
        "picture in a good state."
    )
    percentile: float = Field(
        description="Share of ordinary pictures that are less displaced, in percent."
    )


class Uncertainty(BaseModel):
    """The uncertainty of the similarity of the query to the gallery's nearest item."""

    value: float | None = Field(
        description="Standard deviation, to first order, of the similarity to the gallery's "
        "nearest item. Null if the encoder gives no variance, if the gallery is empty, or if "
        "another store found the neighbours."
    )
    percentile: float | None = Field(
        description="Share of calibration queries that are less uncertain, in percent; null "
        "without calibration, and in bundles of earlier releases, which measured the spread of the "
        "query alone."
    )
    level: Level | None = Field(description="The percentile in a word.")
    epistemic: float | None = Field(
        description="The part of `value` that more training images would take away: all of it if "
        "the posterior is one over weights. Null if it is one over single images, or if `value` is "
        "null."
    )
    aleatoric: PictureState | None = Field(
        description="The part that another photograph would take away. Null without calibration, "
        "for vectors and texts, and in bundles of earlier releases."
    )
    method: str = Field(description="The posterior the variance comes from.")


class OutOfDistribution(HasReason):
    """The outlier test of a query against the images that the gallery was calibrated with."""

    flag: bool | None = Field(
        description="p_value ≤ alpha; null where nothing is calibrated, or where no query could be "
        "flagged at so small an alpha: see `reason`."
    )
    reason: str | None = Field(description="Why `alpha` cannot flag any query; else null.")
    p_value: float | None = Field(
        description="Share of ordinary queries that look at least as unusual as this one."
    )
    alpha: float = Field(description="Share of ordinary queries that may be flagged by mistake.")
    method: str


class QueryImage(BaseModel):
    """The image that was received."""

    format: str
    width: int
    height: int
    warnings: list[str]


class QueryText(BaseModel):
    """The text that was received."""

    n_tokens: int = Field(description="That the encoder has read.")
    warnings: list[str] = Field(description="Such as that its end was cut off.")


class Query(BaseModel):
    """The query, before any neighbour is looked at."""

    id: str = Field(description="Hash of the upload; feedback refers to it.")
    uncertainty: Uncertainty
    ood: OutOfDistribution
    image: QueryImage | None = Field(description="null for a vector or a text.")
    text: QueryText | None = Field(description="null for an image or a vector.")
