"""The parts that all engines of a service share."""

from __future__ import annotations

from dataclasses import dataclass, field

from model_store.feedback import AnsweredQueries, FeedbackLog, ReviewQueue
from service.decoding.decoder import Decoder
from service.encoding.cache import Cache
from service.encoding.queues import BatchLimits, EncoderQueues
from service.observability.metrics import Telemetry
from service.serving.reviewing import NOTHING_REVIEWED, ReviewTerms
from service.serving.threads import Threads
from service.settings import OnDrift


@dataclass(frozen=True, slots=True)
class EngineResources:
    """The parts that all engines of a service share.

    Attributes
    ----------
    cache : keeps predictive distributions.
    decoder : turns uploads into the encoder's input, in processes that can be lost.
    threads : those that search and decide.
    telemetry : metrics of all galleries.
    batches : limits on what is encoded at once.
    feedback : keeps users' feedback, and the state of drift tests.
    audit_share : share of matches to draw for review, where feedback is kept.
    on_drift : see `SearchEngine.on_drift`.
    answered : keeps what was made of queries; None where they are remembered as long as cached.
    reviews, review_terms : the review queue and its terms; None without one.
    queues : of the encoders.
    """

    cache: Cache
    decoder: Decoder
    threads: Threads
    telemetry: Telemetry
    batches: BatchLimits = field(default_factory=BatchLimits)
    feedback: FeedbackLog | None = None
    audit_share: float = 0.0
    on_drift: OnDrift = "warn"
    answered: AnsweredQueries | None = None
    reviews: ReviewQueue | None = None
    review_terms: ReviewTerms = NOTHING_REVIEWED
    queues: EncoderQueues = field(default_factory=EncoderQueues)
