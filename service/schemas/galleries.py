"""Galleries, and what their probabilities rest on."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from model_store.verdicts import Absence, Order, OutcomeBasis, OutcomeSeverity
from service.schemas.bundles import BundleState, CalibrationState, CalibrationStatus
from service.schemas.feedback import ErrorsOverTime, FeedbackCorrection, FeedbackSummary
from service.schemas.reasons import HasReason
from service.schemas.requests import RequestModel


class GalleryName(BaseModel):
    """A gallery in the list of galleries."""

    name: str
    title: str = Field(description="For people; empty where there is none.")
    n_items: int | None = Field(description="Null for a created gallery without recent requests.")
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


class TextState(BaseModel):
    """The encoder of queries in words, and their calibration."""

    fingerprint: str
    context_length: int = Field(description="Tokens of a text that it reads.")
    posterior: str = Field(description="`deterministic`: no variance is known of a text.")
    calibration: CalibrationState


class Sample(BaseModel):
    """A query image to try."""

    id: str
    caption: str
    belongs: bool = Field(description="Whether the gallery holds a true match.")
    image_url: str


class OperatingPoint(BaseModel):
    """The rates that follow from calling first results a match from some probability on."""

    threshold: float = Field(description="Match probability from which a first result is a match.")
    coverage: float = Field(description="Share of queries that get a match.")
    error: float = Field(description="Share of these matches that is wrong.")
    error_bound: float = Field(description="Upper confidence bound of that share.")
    false_match_rate: float | None = Field(
        description="FPIR: share of the queries without a match in the gallery that get a match. "
        "Null where too little is known of such queries."
    )
    false_match_bound: float | None = Field(description="Upper confidence bound of it.")


class MatchPromise(HasReason):
    """From which probability on first results of one kind of label are called a match."""

    size_class: Literal["one", "few", "many"] = Field(
        description="Of the first result's label: `one` item in the gallery, a `few` (2 to 5), or "
        "`many`."
    )
    n_labels: int = Field(description="Labels of the gallery in that class.")
    threshold: float | None = Field(description="Null where nothing can be promised.")
    point: OperatingPoint | None
    reason: str | None = Field(description="What is missing, and how many queries would do.")


class LevelPromise(BaseModel):
    """From which probability on an ambiguous query rolls up to a label of a level."""

    level: str
    matches: list[MatchPromise] = Field(
        description="By the label of the highest match probability; of answers of this level."
    )


class AbsentState(BaseModel):
    """The share of queries without a match in the gallery, and the source of that share."""

    assumed: float = Field(description="What probabilities were fitted with.")
    expected: float | None = Field(description="What the configuration of the gallery names.")
    adopted: float | None = Field(description="What the operator adopted; null for nothing.")
    adopted_at: str | None = Field(description="When that was.")
    estimated: float | None = Field(
        description="Maximum likelihood over the queries that were served and not out of "
        "distribution; null while they are too few."
    )
    interval: tuple[float, float] | None = Field(
        description="95 % interval of the estimate, by sampling alone."
    )
    n_served: int = Field(description="Queries that the estimate rests on.")
    used: float = Field(description="Where neither request nor key names a share.")
    is_hint: bool = Field(
        description="Whether the estimate may be far off: views of items say too little of absent "
        "queries to adopt it."
    )
    basis: Absence = Field(description="What stood for absent queries in calibration.")
    warning: str | None = Field(
        description="What to do where the interval excludes the share that is used; else null."
    )


class DriftReport(HasReason):
    """The tests of whether served queries still resemble the calibration queries.

    The queries of each key, or of each address where there are no keys, are tested separately:
    an alarm withdraws the guarantees from answers to that caller. All queries together are tested
    as well, for the operator; that alarm changes no answer. A change of the share of absent queries
    is no drift.
    """

    reason: str | None = Field(description="Why drift is not tested; null where it is.")
    n_served: int = Field(description="Queries of all callers in this period of the test.")
    log_capital: float = Field(description="Evidence of a drift in these, in nats; alarm at 5.7.")
    drifted: bool = Field(description="Whether these raised an alarm that still lasts.")
    n_streams: int = Field(description="Callers whose queries are tested.")
    n_alarmed: int = Field(description="Of these, callers with an alarm that still lasts.")


class AdoptedShare(RequestModel):
    """The share of absent queries that is used from now on."""

    share: float = Field(
        gt=0, lt=1, description="Share of queries that have no match in the gallery."
    )


class OperatorDecision(BaseModel):
    """The state after a decision of the operator."""

    gallery: str
    absent_share: float = Field(description="Where neither request nor key names a share.")
    adopted_at: str | None = Field(description="When that was adopted; null: it is configured.")
    alarmed: list[str] = Field(
        description="Callers whose alarms this decision ended, in this process: `key <id>` or "
        "`address <address>`."
    )
    persisted: bool = Field(
        description="Whether a restart and other processes follow it: the directory of bundles "
        "could be written to."
    )


class ReliabilityBin(BaseModel):
    """First results of about the same match probability, on its calibration queries."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Share that is a true match: the same, if calibrated.")
    weight: float = Field(description="Share of the stream that they stand for.")


class ResultSetOutcome(BaseModel):
    """The performance of result sets of one coverage on its calibration queries."""

    coverage: float
    promised: bool = Field(description="Whether it is promised for every label.")
    promised_for: list[Literal["one", "few", "many"]] = Field(
        description="Labels for whose queries it is promised, by their number of items."
    )
    covered: float = Field(description="Share of sets that hold a true match.")
    mean_size: float


class CalibrationReport(BaseModel):
    """The evidence behind the gallery's probabilities, and the cost of each threshold."""

    status: CalibrationStatus
    n_queries: int
    queries: Literal["held_out_images", "left_out_items", "views_of_items", "captions"] | None = (
        Field(
            description="The calibration queries: images that the gallery lacks; its items, each "
            "searched for in the rest of the gallery; of a gallery without labels, views of its "
            "items made up by cropping, turning, relighting and compressing them. Queries in words "
            "are calibrated with captions."
        )
    )
    alpha: float | None = Field(description="Default rate of false alarms of the OOD flag.")
    coverage: float | None = Field(description="Default coverage of result sets.")
    max_error: float | None = Field(
        description="Share of wrong ones among matches that is promised not to be exceeded."
    )
    max_false_match_rate: float | None = Field(
        description="Share of queries without a match in the gallery that may get one, with "
        "the same guarantee; null for any."
    )
    delta: float | None = Field(
        description="Each promise, for one level chosen in advance, is kept with probability "
        "1 − delta over calibrations."
    )
    absent: AbsentState | None
    drift: DriftReport
    order: Order | None = Field(
        description="The order of the lists whose first results are described."
    )
    sources: list[str] = Field(description="Where calibration queries come from.")
    matches: list[MatchPromise]
    levels: list[LevelPromise] = Field(
        description="Where labels have parents: what ambiguous queries roll up to, the finest "
        "level first."
    )
    point: OperatingPoint | None = Field(description="What all of these lead to together.")
    top1_ece: float | None = Field(
        description="Expected calibration error of first results on a stream with the assumed "
        "share of absent queries, cross-fitted."
    )
    reliability: list[ReliabilityBin] = Field(
        description="Of that stream, bins of about the same weight, cross-fitted."
    )
    risk_coverage: list[OperatingPoint] = Field(
        description="From the strictest threshold on, cross-fitted."
    )
    result_sets: list[ResultSetOutcome] = Field(description="Cross-fitted.")
    outlier_auroc: dict[str, float] = Field(
        description="How well the outlier score tells `near` calibration images, of unknown "
        "labels, from ordinary queries; cross-fitted."
    )
    feedback: FeedbackSummary | None = Field(description="None without feedback.")
    errors_over_time: ErrorsOverTime | None = Field(
        description="Of verdict `match`. None where the service keeps no feedback."
    )
    correction: FeedbackCorrection | None = Field(
        description="Of match probabilities, by feedback; everything else here is measured before "
        "it. None where the gallery was calibrated without feedback."
    )
    written_at: datetime | None = Field(
        None,
        description="When its file was written: it was calibrated then, or brought here.",
    )


class OperatingPointAnswer(BaseModel):
    """The largest coverage within an error."""

    max_error: float
    point: OperatingPoint | None = Field(
        description="None where no threshold can be promised to err so seldom, or nothing is "
        "calibrated."
    )


class OutcomeLine(BaseModel):
    """One line on a gallery's outcome."""

    code: str = Field(description="Stable name of the line's subject, such as `recall_low`.")
    severity: OutcomeSeverity = Field(
        description="`warning` names a shortfall; `failure` makes the gallery of little use."
    )
    parameters: dict[str, float | int | str | None] = Field(
        description="The values in the line; shares are between 0 and 1."
    )
    sentence: str = Field(description="The line in English.")


class GalleryOutcome(BaseModel):
    """Quality of the gallery's answers, measured when it was calibrated, and its shortfalls.

    A number is null where it is not known.
    """

    basis: OutcomeBasis | None = Field(
        description="The source of the numbers: an `evaluation` on queries used for nothing else, "
        "or the queries of the `calibration`, cross-fitted. Null without calibration."
    )
    n_queries: int | None = Field(description="Queries with a match in the gallery.")
    recall_at_1: float | None = Field(description="Share of them whose first result is right.")
    match_share: float | None = Field(description="Share of them with verdict `match`.")
    match_error: float | None = Field(
        description="Observed share of wrong ones among matches, with absent queries in their "
        "expected share."
    )
    match_error_bound: float | None = Field(description="Upper confidence bound of it.")
    max_error: float | None = Field(description="Largest error of matches that is accepted.")
    false_match_rate: float | None = Field(
        description="Share of absent queries with verdict `match`."
    )
    false_match_bound: float | None = Field(description="Upper confidence bound of it.")
    flagged_share: float | None = Field(
        description="Share of queries with a match that are flagged out of distribution."
    )
    absent_flagged_share: float | None = Field(
        description="Share of absent queries that are flagged out of distribution."
    )
    lines: list[OutcomeLine] = Field(
        description="Facts, then shortfalls with their causes and next steps; ten at most."
    )


class GalleryDetail(BaseModel):
    """One gallery."""

    name: str
    title: str = Field(description="For people; empty where there is none.")
    description: str
    created_at: str | None = Field(
        description="When it was created over HTTP; null for one that was built."
    )
    n_items: int
    n_labels: int
    labels: list[str] = Field(description="The first dozen by name; `…/labels` lists all.")
    bundle: BundleState
    encoder: EncoderState
    text: TextState | None = Field(
        description="For `POST …/search/text`; null where the encoder has no text tower."
    )
    calibration: dict[str, Any] | None = Field(description="How the decision layer was fitted.")
    metrics: dict[str, Any] | None = Field(
        description="Measured on queries used for nothing else when the bundle was built."
    )
    outcome: GalleryOutcome = Field(
        description="At the time of calibration; `bundle.calibration` says whether that still "
        "holds."
    )
    samples: list[Sample]
    record_url: str | None = Field(
        description="Where the records of its items are: a template in which `{id}`, `{label}` or "
        "a `{key}` of the metadata stand for an item's own, percent-encoded."
    )
    image_origins: list[str] = Field(
        description="Where the service's own page loads `image_url` of items' metadata from, "
        "beside its own origin."
    )


class FacetValue(BaseModel):
    """A value of a field."""

    value: str | int | float | bool
    n_items: int = Field(description="That have it.")


class Facet(BaseModel):
    """A field of a gallery's items, and what it holds."""

    field: str = Field(description="Its name in a filter.")
    comparison: Literal["eq", "has"] = Field(
        description="By which a filter finds a value: `has` where the items have lists."
    )
    n_items: int = Field(description="That have a value.")
    n_values: int = Field(description="Distinct ones.")
    least: float | None = Field(description="Of the numbers; null where there are none.")
    greatest: float | None = Field(description="Of the numbers; null where there are none.")
    values: list[FacetValue] = Field(
        description="The most frequent ones; none where no two items agree."
    )


class FacetList(HasReason):
    """The fields that a gallery can be filtered by at once."""

    gallery: str
    bundle_id: str
    facets: list[Facet] = Field(
        description="The fields that the bundle has an index of, with the items of now counted."
    )
    reason: str | None = Field(
        None, description="Why there are none; null where there may be some."
    )


class LabelList(BaseModel):
    """A page of a gallery's labels."""

    gallery: str
    bundle_id: str
    n_labels: int = Field(description="Of the whole gallery.")
    labels: list[str] = Field(description="By name.")
    next_after: str | None = Field(
        description="To send as `after` for the next page; null on the last."
    )
