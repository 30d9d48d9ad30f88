"""What the service answers, as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from model_store.decision.verdict import Level, Verdict

CalibrationStatus = Literal["valid", "stale", "missing"]
"""`stale`: fitted, but for another gallery or search than is served now, or for other queries than
come in; its numbers are shown, and are no promise."""

OnUncertain = Literal["answer", "refuse"]
"""Whether results are shown whatever the verdict, or only with verdict `match`."""


class Uncertainty(BaseModel):
    """How spread the query's embedding is."""

    value: float = Field(description="Spherical variance of the embedding, 0 (certain) to 1.")
    percentile: float | None = Field(
        description="Share of calibration queries that are less uncertain, in percent."
    )
    level: Level | None = Field(description="The percentile in a word.")
    method: str = Field(description="The posterior the variance comes from.")


class OutOfDistribution(BaseModel):
    """Whether the query belongs to the world the encoder knows."""

    flag: bool | None = Field(description="p_value ≤ alpha.")
    p_value: float | None = Field(
        description="Share of ordinary queries that look at least as alien as this one."
    )
    alpha: float = Field(description="Share of ordinary queries that may be flagged by mistake.")
    method: str


class QueryImage(BaseModel):
    """What was received."""

    format: str
    width: int
    height: int
    warnings: list[str]


class Query(BaseModel):
    """The query, before any neighbour is looked at."""

    id: str = Field(description="Of the uploaded bytes; what feedback refers to.")
    uncertainty: Uncertainty
    ood: OutOfDistribution
    image: QueryImage


class Result(BaseModel):
    """One ranked neighbour."""

    rank: int
    id: str
    similarity: float = Field(description="Cosine, −1 to 1; larger is nearer. Orders the results.")
    match_probability: float | None = Field(
        description="Calibrated probability that the item is a true match; among results of one "
        "label a closer one never has the lower."
    )
    match_probability_interval: tuple[float, float] | None = Field(
        description="What that probability lies between (Venn-Abers); wide where calibration "
        "queries like this one are few."
    )
    rank_stability: float = Field(
        description="Share of predictive samples under which the item is among the results."
    )
    rank_confidence: float | None = Field(
        description="Probability that the item is nearer to the query than the next one, given how "
        "uncertain the query's embedding is; null for the gallery's last."
    )
    variance: float = Field(description="Of the item's embedding, relative to its squared norm.")
    label: str | None
    metadata: dict[str, Any]
    thumbnail_url: str


class CalibrationState(BaseModel):
    """Whether probabilities are given at all."""

    status: CalibrationStatus
    n_queries: int
    reason: str | None = Field(description="Why it is stale, and what to do.")


class BundleState(BaseModel):
    """Which bundle answered."""

    id: str
    calibration: CalibrationState


class SetItem(BaseModel):
    """An item of a result set."""

    id: str
    label: str | None


class ResultSet(BaseModel):
    """As few items as hold a true match with a stated probability.

    Items of one label are right or wrong together: the nearest of each likely label stands for all.
    Promised for queries that have a match in the gallery and are such as the gallery was calibrated
    with, in nine of ten calibrations (exact binomial test).
    """

    items: list[SetItem] = Field(description="Nearest first; some may stand below the results.")
    coverage: float = Field(description="What was asked for.")
    promised: bool = Field(description="Whether one of them is a true match so often.")
    reason: str | None = Field(description="Why the coverage cannot be promised.")


class SearchAnswer(BaseModel):
    """The answer to one query."""

    request_id: str
    gallery: str
    verdict: Verdict = Field(description="What a front end switches on.")
    query: Query
    results: list[Result] = Field(
        description="By similarity, equal ones by id; none where `on_uncertain=refuse` refused."
    )
    result_set: ResultSet | None = Field(
        description="None where nothing is calibrated, or `on_uncertain=refuse` refused."
    )
    bundle: BundleState
    cache: Literal["hit", "miss"]
    timing_ms: dict[str, float]


class QualityHint(BaseModel):
    """One reason why a picture may be a poor query, for whoever holds the camera."""

    code: str = Field(description="`too_small`, `too_dark`, `flat`, `blurred` or `extreme_aspect`.")
    measure: str = Field(description="What was measured: a key of `measures`.")
    value: float
    advice: str = Field(description="One sentence on what to do.")


class Quality(BaseModel):
    """How good a picture it is, whatever it shows."""

    hints: list[QualityHint] = Field(description="Only what is unusual for this gallery's queries.")
    measures: dict[str, float]


class AssessmentAnswer(BaseModel):
    """What is said of a picture before anything is searched."""

    request_id: str
    gallery: str
    query: Query
    quality: Quality
    bundle: BundleState


class FeedbackRequest(BaseModel):
    """Whether an item is a true match of a query that was searched with before."""

    query_id: str = Field(pattern="^[0-9a-f]{64}$", description="`query.id` of an answer.")
    item_id: str = Field(min_length=1, max_length=4096)
    correct: bool = Field(description="Confirmed, or rejected.")


class FeedbackAnswer(BaseModel):
    """What was kept: with it, how true probabilities are can be seen, and fitted anew."""

    query_id: str
    item_id: str
    correct: bool
    rank: int
    match_probability: float = Field(description="What was served for the pair.")


class FeedbackSummary(BaseModel):
    """How served probabilities compare with what users said of them."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Share of the pairs that users confirmed.")


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


class FeedbackCorrection(BaseModel):
    """What users' words of earlier matches changed about match probabilities."""

    n: int = Field(description="Pairs that users had spoken of.")
    confirmed: int
    n_others: int = Field(description="Further pairs, served with other probabilities: left aside.")
    applied: bool = Field(
        description="Whether the correction foretells what users say better than none, "
        "cross-fitted; else nothing is corrected."
    )
    slope: float = Field(description="On log-odds; 1 where nothing is corrected.")
    intercept: float = Field(description="On log-odds; 0 where nothing is corrected.")
    log_loss_before: float
    log_loss_after: float = Field(description="Cross-fitted.")


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
    labels: list[str]
    bundle: BundleState
    encoder: EncoderState
    calibration: dict[str, Any] | None = Field(description="How the decision layer was fitted.")
    metrics: dict[str, Any] | None = Field(
        description="Measured on queries used for nothing else when the bundle was built."
    )
    samples: list[Sample]


class ItemDetail(BaseModel):
    """One item of a gallery."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    thumbnail_url: str


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


class FieldError(BaseModel):
    """One field of a request that is wrong."""

    pointer: str
    detail: str


class Problem(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(description="Stable name of the kind of error, to switch on.")
    request_id: str
    errors: list[FieldError] | None = None
