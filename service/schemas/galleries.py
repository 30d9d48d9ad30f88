"""Galleries, and what their probabilities rest on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.schemas.bundles import BundleState, CalibrationStatus
from service.schemas.feedback import FeedbackCorrection, FeedbackSummary


class GalleryName(BaseModel):
    """A gallery in the list of galleries."""

    name: str
    n_items: int
    bundle_id: str


class GalleryList(BaseModel):
    """All galleries that are served."""

    galleries: list[GalleryName]


class EncoderState(BaseModel):
    """The encoder that answers."""

    fingerprint: str
    provider: str = Field(description="The execution provider that really runs.")
    dim: int
    posterior: str


class Sample(BaseModel):
    """A query image to try."""

    id: str
    caption: str
    belongs: bool = Field(description="Whether the gallery holds a true match.")
    image_url: str


class OperatingPoint(BaseModel):
    """What comes of calling a first result a match from some probability on."""

    threshold: float = Field(description="Match probability from which a first result is a match.")
    coverage: float = Field(description="Share of queries that get a match.")
    error: float = Field(description="Share of these matches that is wrong.")
    error_bound: float = Field(description="Upper 90 % confidence bound of that share.")


class ReliabilityBin(BaseModel):
    """First results of about the same match probability, on held-out queries."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Share that is a true match: the same, if calibrated.")


class ResultSetOutcome(BaseModel):
    """What result sets of one coverage come to on held-out queries."""

    coverage: float
    promised: bool = Field(description="Whether there are queries enough to promise it.")
    covered: float = Field(description="Share of sets that hold a true match.")
    mean_size: float


class CalibrationReport(BaseModel):
    """What the gallery's probabilities rest on, and what each threshold on them would cost."""

    status: CalibrationStatus
    n_queries: int
    queries: Literal["held_out_images", "views_of_items"] | None = Field(
        description="What it was calibrated with; of a gallery without labels, views of its items "
        "made up by cropping, turning, relighting and compressing them."
    )
    alpha: float | None = Field(description="Default rate of false alarms of the OOD flag.")
    coverage: float | None = Field(description="Default coverage of result sets.")
    match_threshold: float | None = Field(description="Match probability of verdict `match`.")
    top1_ece: float | None = Field(
        description="Expected calibration error of first results, cross-fitted."
    )
    reliability: list[ReliabilityBin] = Field(description="As many queries in each, cross-fitted.")
    risk_coverage: list[OperatingPoint] = Field(
        description="From the strictest threshold on, cross-fitted."
    )
    result_sets: list[ResultSetOutcome] = Field(description="Cross-fitted.")
    outlier_auroc: dict[str, float] = Field(
        description="How well the outlier score tells `near` (unknown labels), `far` (another "
        "world) and `corrupted` calibration images from ordinary queries; cross-fitted."
    )
    feedback: FeedbackSummary | None = Field(description="None as long as nobody said anything.")
    correction: FeedbackCorrection | None = Field(
        description="Of match probabilities, by feedback; everything else here is measured before "
        "it. None where the gallery was calibrated without feedback."
    )


class OperatingPointAnswer(BaseModel):
    """The largest coverage within an error."""

    max_error: float
    point: OperatingPoint | None = Field(
        description="None where no threshold errs so seldom, or nothing is calibrated."
    )


class GalleryDetail(BaseModel):
    """One gallery."""

    name: str
    description: str
    n_items: int
    n_labels: int
    labels: list[str] = Field(description="The first dozen by name; `…/labels` lists all.")
    bundle: BundleState
    encoder: EncoderState
    calibration: dict[str, Any] | None = Field(description="How the decision layer was fitted.")
    metrics: dict[str, Any] | None = Field(
        description="Measured on queries used for nothing else when the bundle was built."
    )
    samples: list[Sample]


class LabelList(BaseModel):
    """A page of a gallery's labels."""

    gallery: str
    bundle_id: str
    n_labels: int = Field(description="Of the whole gallery.")
    labels: list[str] = Field(description="By name.")
    next_after: str | None = Field(
        description="To send as `after` for the next page; null on the last."
    )
