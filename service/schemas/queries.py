"""Schemas of a query: its uncertainty, outlier test and input."""

from __future__ import annotations

from pydantic import BaseModel, Field

from model_store.verdicts import Level
from service.schemas.base import HasReason


class PictureState(BaseModel):
    """The image quality: how far blur, noise, darkness or a crop move the embedding."""

    value: float = Field(
        description="Expected displacement of the embedding: 1 − c, where c is the cosine between "
        "this embedding and the embedding of the same picture without defects."
    )
    percentile: float = Field(
        description="Percentage of ordinary pictures with a smaller displacement."
    )


class Uncertainty(BaseModel):
    """The uncertainty of the similarity between the query and the gallery's nearest item."""

    value: float | None = Field(
        description="Standard deviation (to first order) of the similarity between the query and "
        "the gallery's nearest item. Null if the encoder gives no variance, if the gallery is "
        "empty, or if another store found the neighbours."
    )
    percentile: float | None = Field(
        description="Share of calibration queries that are less uncertain, in percent. Null "
        "without calibration, and in bundles of earlier releases."
    )
    level: Level | None = Field(description="The percentile as a level.")
    epistemic: float | None = Field(
        description="The part of `value` that would disappear with more training images. Equal to "
        "`value` if the encoder has a posterior over its weights. Null if the encoder has a "
        "posterior over single images, or if `value` is null."
    )
    aleatoric: PictureState | None = Field(
        description="Uncertainty that a better photograph would remove. Null without calibration, "
        "for vectors and texts, and in bundles of earlier releases."
    )
    method: str = Field(description="Posterior from which the encoder computes the variance.")


class OutOfDistribution(HasReason):
    """The outlier test: whether a query is unlike the calibration queries."""

    flag: bool | None = Field(
        description="Whether p_value ≤ alpha. Null without calibration, or if `alpha` is too "
        "small to flag any query: see `reason`."
    )
    reason: str | None = Field(description="Why `alpha` cannot flag any query; else null.")
    p_value: float | None = Field(
        description="Share of ordinary queries that look at least as unusual as this query."
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

    n_tokens: int = Field(description="Number of tokens that the encoder read.")
    warnings: list[str] = Field(description="Warnings, for example that the text was truncated.")


class Query(BaseModel):
    """The query: its uncertainty, outlier test and input."""

    id: str = Field(description="Hash of the upload. Use this id in feedback on the query.")
    uncertainty: Uncertainty
    ood: OutOfDistribution
    image: QueryImage | None = Field(description="Null for a vector or a text.")
    text: QueryText | None = Field(description="Null for an image or a vector.")
